"""LDR-TD layers as they come: how many the port product is accepted for, and what it gains.

    python benchmarks/port_speed.py [--quick] [--sizes 4096 16384 32768] [--seeds 10] [--device cpu]

Rank 1, float32, one vector, inference. Operators are not divided by their growth: subdiagonal 1 + .05 z,
diagonal and superdiagonal .1 z, corners 0 or .3 z, z uniform on [-1, 1] or normal, G and H normal. For each
kind and size:

    accepted    for how many seeds `judge` accepts the port product
    within      for how many the result of a random vector is within the range of float32 at all
    c           its largest oversampling among these
    port_ms     the median seed's product, in one run with
    stencil_ms  the compiled stencil's, and
    dense_ms    torch.mv of the dense matrix (left out above --largest-dense)
    judged_s    the median time that judging took
    error           the largest error of an accepted product, and
    stencil_error   of the float32 stencil, both over a mean of |factors||x|, against float64

Times are the least of some repeats. Rows are put into results/bench/port_speed.json (--out), with --device
cuda into port_speed_cuda.json, in place of those of the same kind and size.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchldr.functional import tridiagonal
from torchldr.functional.port import acceptance
from torchldr.functional.tridiagonal import Operator
from torchldr.timing import machine

Row = dict[str, Any]


def as_it_comes(
    kind: str, corners: float, n: int, seed: int, device: str, spread: float = 1.0
) -> tuple[Operator, Operator]:
    """The operators of a layer, in float32; `spread` times the usual one."""
    generator = torch.Generator().manual_seed(seed)

    def z(*shape: int) -> Tensor:
        if kind == "normal":
            return spread * torch.randn(*shape, generator=generator)
        return spread * (2 * torch.rand(*shape, generator=generator) - 1)

    found = []
    for _ in range(2):
        lower, diagonal, upper = 1 + 0.05 * z(n), 0.1 * z(n), 0.1 * z(n)
        lower[0], upper[-1] = corners * z(2)
        V = torch.randn(1, n, generator=generator)
        found.append(tuple(x.to(device) for x in (lower, diagonal, upper, V)))
    return found[0], found[1]  # type: ignore[return-value]


def least(call: Callable[[], object], device: str, repeats: int) -> float:
    """The shortest of some calls, in milliseconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def wide(operator: Operator) -> Operator:
    lower, diagonal, upper, V = (x.double() for x in operator)
    return lower, diagonal, upper, V


@torch.no_grad()
def row(kind: str, corners: float, n: int, seeds: int, device: str, repeats: int, dense: float | None) -> Row:
    accepted, bounds, stencils, errors, judged, reasons, within = [], [], [], [], [], [], 0
    for seed in range(seeds):
        A, C = as_it_comes(kind, corners, n, seed, device)
        x = torch.randn(1, n, generator=torch.Generator().manual_seed(seed)).to(device)
        start = time.perf_counter()
        verdict = acceptance.judge(A, C)
        judged.append(time.perf_counter() - start)
        reasons.append(verdict.reason)
        stencil = lambda A=A, C=C, x=x: tridiagonal.product(A, C, x)
        stencils.append(least(stencil, device, 2))
        exact = tridiagonal.product(wide(A), wide(C), x.double())
        fits = bool((exact.abs() < torch.finfo(torch.float32).max).all())
        within += fits
        if verdict.ports is None:
            continue
        bounds.append(verdict.bound)
        time_ms = least(lambda ports=verdict.ports, x=x: ports(x), device, repeats)
        accepted.append((time_ms, verdict.ports.oversampling))
        _, _, sizes = acceptance.profile(wide(A), wide(C), n)
        size = float((sizes * x.double().abs()).sum())
        if fits:
            errors.append([float((y - exact).abs().max()) / size for y in (verdict.ports(x), stencil())])
    found: Row = {"kind": kind, "corners": corners, "n": n, "seeds": seeds, "accepted": len(accepted)}
    found |= {"within": within}
    found |= {"judged_s": statistics.median(judged), "stencil_ms": min(stencils), "dense_ms": dense}
    if accepted:
        port = statistics.median(time_ms for time_ms, _ in accepted)
        found |= {"c": max(c for _, c in accepted), "bound": max(bounds), "port_ms": port}
        found |= {"over_stencil": found["stencil_ms"] / port, "over_dense": dense / port if dense else None}
        for key, of in zip(("error", "stencil_error"), zip(*errors, strict=True), strict=False):
            found[key] = max(of)
    return found | {"reasons": reasons}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small size")
    parser.add_argument("--sizes", type=int, nargs="+", default=[4096, 8192, 16384, 32768])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--corners", type=float, nargs="+", default=[0.0, 0.3])
    parser.add_argument("--kinds", nargs="+", default=["uniform", "normal"])
    parser.add_argument("--largest-dense", type=int, default=32768)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.quick:
        options.sizes, options.seeds, options.repeats = [512], 2, 2
    name = "port_speed.json" if options.device == "cpu" else "port_speed_cuda.json"
    out = options.out or (None if options.quick else Path("results/bench") / name)
    for n in options.sizes:
        dense = None
        if n <= options.largest_dense:
            W, x = torch.randn(n, n, device=options.device), torch.randn(n, device=options.device)
            dense = least(lambda W=W, x=x: torch.mv(W, x), options.device, 2 * options.repeats)
            del W
        for kind in options.kinds:
            for corners in options.corners:
                case = kind, corners, n, options.seeds, options.device, options.repeats, dense
                found = row(*case)
                print({k: v for k, v in found.items() if k != "reasons"}, flush=True)
                if out is not None:
                    write(out, [found])


def write(out: Path, rows: list[Row]) -> list[Row]:
    """Put rows into a file, in place of those of the same case; all that it has then."""
    case = lambda row: (row["n"], row["kind"] == "normal", row["corners"], row.get("spread", 1.0))
    before = json.loads(out.read_text())["rows"] if out.exists() else []
    merged = {case(row): row for row in [*before, *rows]}
    out.parent.mkdir(parents=True, exist_ok=True)
    found = {"machine": machine(), "clock": "wall", "rows": [merged[key] for key in sorted(merged)]}
    out.write_text(json.dumps(found, indent=1) + "\n")
    return found["rows"]


if __name__ == "__main__":
    main()
