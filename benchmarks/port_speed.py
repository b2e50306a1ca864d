"""The port product beside the stencil and a dense matrix: time and error.

    python benchmarks/port_speed.py [--sizes 2048 4096 8192] [--seeds 3] [--threads 1]

M x = K(A, g) K(C, h)^T x of rank 1 for one vector, by two `PortPlan`s in float64. Both operators are divided
by the growth of their powers, so that these keep their size. Entries are those of `tridiagonal_range.py`,
uniform or normal, without corners; `string` has 1/2 beside the diagonal and rings forever. For each n and
kind:

    made_s          making both plans
    port_ms         the product by plans, in float64
    stencil_ms      the library's stencil, in float64
    dense_ms        torch.mv of a dense float64 matrix, up to --largest-dense
    over_stencil, over_dense    these over port_ms
    errors          of the port product, over the largest entry of M x, for each oversampling c

Times are the least of some repeats in turn, at c = 2; times and ratios are medians over seeds. The reference
for errors is the stencil in float64, whose own rounding is in them; an error is the largest over seeds. Rows
go to results/bench/port_speed.json (--out).
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
from tridiagonal_range import KINDS, near_shifts

from torchldr import LDRTridiagonal
from torchldr.matrices.ldr_td.operators import growth_rate
from torchldr.timing import machine
from torchldr_paper.ports import PortPlan

OVERSAMPLING = 2, 4, 8


def divided_by_growth(kind: str, n: int, seed: int) -> LDRTridiagonal:
    """In float64, without corners."""
    M = near_shifts("normal" if kind == "string" else kind, 0.0, n, seed).double()
    if kind == "string":
        for side in "AC":
            M.tensors[f"subdiagonal_{side}"].fill_(0.5)
            M.tensors[f"diagonal_{side}"].zero_()
            M.tensors[f"superdiagonal_{side}"].fill_(0.5)
    for side, operator in zip("AC", M.both_operators(), strict=True):
        factor = torch.tensor(growth_rate(*operator, n)).neg().exp()
        for part in ("subdiagonal", "diagonal", "superdiagonal"):
            M.tensors[f"{part}_{side}"].mul_(factor)
    return M


def least(calls: dict[str, Callable[[], Tensor]], repeats: int) -> dict[str, float]:
    """The shortest time of each call, in milliseconds; they run in turn."""
    times = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name] = min(times[name], 1e3 * (time.perf_counter() - start))
    return times


@torch.no_grad()
def row(kind: str, n: int, seeds: int, repeats: int, largest_dense: int) -> dict[str, Any]:
    times: dict[str, list[float]] = {}
    errors = dict.fromkeys(OVERSAMPLING, 0.0)
    for seed in range(seeds):
        M = divided_by_growth(kind, n, seed)
        x = torch.randn(1, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        exact = M.matmul(x, product="fast")
        for c in reversed(OVERSAMPLING):  # the last ones made are timed
            start = time.perf_counter()
            A, C = (PortPlan(*operator, n, oversampling=c) for operator in M.both_operators())
            made = time.perf_counter() - start
            error = float((A.matmul(C.rmatmul(x)) - exact).abs().max() / exact.abs().max())
            errors[c] = max(errors[c], error)
        calls = {
            "port_ms": lambda A=A, C=C, x=x: A.matmul(C.rmatmul(x)),
            "stencil_ms": lambda M=M, x=x: M.matmul(x, product="fast"),
        }
        if n <= largest_dense:
            W = torch.randn(n, n, dtype=torch.float64)
            calls["dense_ms"] = lambda W=W, x=x: torch.mv(W, x[0])
        best = least(calls, repeats)
        ratios = {f"over_{name[:-3]}": ms / best["port_ms"] for name, ms in best.items() if name != "port_ms"}
        for name, value in {"made_s": made, **best, **ratios}.items():
            times.setdefault(name, []).append(value)
    medians = {name: statistics.median(of) for name, of in times.items()}
    return {"n": n, "kind": kind, "seeds": seeds, **medians, **{f"error_{c}": e for c, e in errors.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[2048, 4096, 8192])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--largest-dense", type=int, default=16384)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/bench/port_speed.json"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    for n in options.sizes:
        for kind in (*KINDS, "string"):
            rows.append(row(kind, n, options.seeds, options.repeats, options.largest_dense))
            print(rows[-1], flush=True)
    options.out.write_text(json.dumps({"machine": machine(), "clock": "wall", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
