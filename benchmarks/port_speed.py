"""The port product against the compiled stencil and against dense layers.

    python benchmarks/port_speed.py [--quick] [--threads 2] [--oversampling 2 4]
    python benchmarks/port_speed.py --device cuda

Rank 1, float32, near shifts: subdiagonal 1 +- .05, diagonal and superdiagonal +- .1, corners 0, divided by
their mean growth so that powers stay in range. On a CPU, for each oversampling:

    rmatmul     K(A, v)^T u, all of it, against the compiled stencil; growth from size to size
    layer       inference of an LDR-TD layer by two plans against torch.mv of the dense matrix, whose time at
                sizes that do not fit is that of the largest which does, times the ratio of their bytes
    training    forward and backward of a layer, batch 8, against the stencil's

On a GPU the layer by two plans, batch 8, against a dense TF32 layer, both in CUDA graphs. Both sides of a row
take turns and give the least of as many repeats as the JSON says. Errors are against float64, relative to
the largest entry. Where a size has a floor, `certified` is the oversampling that the certificate asks for,
and the floor holds for that. Writes results/bench/port_speed.json (--out), with --device cuda
port_speed_cuda.json; exits with 1 where a floor is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchldr.functional import port_choice, tridiagonal
from torchldr.functional.port import PortPlan, port_matmul, port_rmatmul
from torchldr.functional.stencil import Stencil
from torchldr.functional.tridiagonal import TILE_COLUMNS, TILE_ENTRIES
from torchldr.timing import captured, machine

TILE = 512  # columns at a time where growth is measured
Row = dict[str, Any]
Operator = tuple[Tensor, Tensor, Tensor, Tensor]  # lower, diagonal, upper and V

# What must hold at the certified oversampling, by table, size and name.
FLOORS = {
    ("rmatmul", 8192, "ratio"): 1.0,
    ("rmatmul", 65536, "ratio"): 10.0,
    ("layer", 32768, "ratio"): 1.0,
    ("layer", 65536, "ratio"): 3.0,
    ("training", 16384, "ratio"): 5.0,
    ("cuda layer", 65536, "ratio"): 3.0,
}
GROWTH = 2.6  # a doubling, from 2^13 to 2^17


def stencil_rmatmul(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, U: Tensor, k: int) -> Tensor:
    """`port_rmatmul` by the compiled stencil, in the tiles and by the products of `tridiagonal.product`."""
    least, most = TILE_COLUMNS
    tile = max(least, min(most, TILE_ENTRIES // V.numel()))
    stencil, state, across = Stencil(lower, diagonal, upper, V, tile), V, U.mT.contiguous()
    parts = []
    for j in range(0, k, tile):
        width = min(tile, k - j)
        stencil.run(state, width)
        parts.append(torch.stack([torch.mm(K, across) for K in stencil.columns(width)]))
        state = stencil.following(width)
    return torch.cat(parts, 1).permute(2, 0, 1)


def near_shift(n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """An operator and a start vector of norm near 1.

    Divided by the mean growth in (at most 4096) steps: powers of the raw operator leave float32 at large n,
    and divided by the row sums they vanish, where a stencil of denormal numbers is slow.
    """
    lower, diagonal, upper = 2 * torch.rand(3, n, generator=generator) - 1
    lower, diagonal, upper = 1 + 0.05 * lower, 0.1 * diagonal, 0.1 * upper
    lower[0] = upper[-1] = 0
    V = torch.randn(1, n, generator=generator) / n**0.5
    ring = torch.stack((lower, diagonal, upper)).double()
    stencil, state, growth = Stencil(*ring, V.double(), TILE), V.double(), 0.0
    tiles = min(8, -(-n // TILE))
    for _ in range(tiles):
        stencil.run(state / state.norm(), TILE)
        state = stencil.following(TILE)
        growth += float(state.norm().log())
    lower, diagonal, upper = (ring / math.exp(growth / (TILE * tiles))).float()
    return lower, diagonal, upper, V


def least(candidates: dict[str, Callable[[], object]], seconds: float = 1.0) -> tuple[dict[str, float], Row]:
    """The shortest time of each, in turn, and the repeats: 20, or as many as fit some seconds, at least 2."""
    best, repeats = {}, {}
    for name, call in candidates.items():
        call()
        start = time.perf_counter()
        call()
        best[name] = time.perf_counter() - start
        repeats[name] = max(2, min(20, int(10 * seconds / best[name])))
    for turn in range(max(repeats.values())):
        for name, call in candidates.items():
            if turn < repeats[name]:
                start = time.perf_counter()
                call()
                best[name] = min(best[name], time.perf_counter() - start)
    return best, {f"{name}_repeats": count + 1 for name, count in repeats.items()}


def certified(n: int, *operators: tuple[Tensor, ...]) -> Row:
    """The oversampling that products in float32 with these operators take, where a size has a floor."""
    if not any(size == n for _, size, _ in FLOORS):
        return {}
    cs = []
    for operator in operators:
        wide = (t.detach().double() for t in operator)
        choice = port_choice.choose_port(*wide, n, torch.float32, log_scale=0.0)
        cs.append(choice.trial.oversampling if choice.accepted else 0)
    return {"certified": max(cs) if all(cs) else None}


def error(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want).abs().max() / want.abs().max())


@torch.no_grad()
def rmatmul_row(n: int, c: int, generator: torch.Generator, largest: int) -> Row:
    operands = *near_shift(n, generator), torch.randn(1, n, generator=generator) / n**0.5
    port = lambda: port_rmatmul(*operands, n, oversampling=c)
    calls: dict[str, Callable[[], object]] = {"port": port}
    if n <= largest:
        calls["stencil"] = lambda: stencil_rmatmul(*operands, n)
    best, repeats = least(calls)
    row = {"table": "rmatmul", "n": n, "c": c, "port_ms": best["port"] * 1e3, **repeats}
    if n <= largest:
        row |= {"stencil_ms": best["stencil"] * 1e3, "ratio": best["stencil"] / best["port"]}
    if n <= 16384:
        exact = stencil_rmatmul(*(x.double() for x in operands), n)
        row |= {
            "port_error": error(port(), exact),
            "stencil_error": error(stencil_rmatmul(*operands, n), exact),
        }
    return row | certified(n, operands[:4])


@torch.no_grad()
def layer_row(n: int, c: int, generator: torch.Generator, dense: tuple[int, float], largest: int) -> Row:
    """`dense` is a size and its time, where this one does not fit."""
    A, C = (near_shift(n, generator) for _ in "AC")
    x = torch.randn(1, n, generator=generator)
    start = time.perf_counter()
    left, right = PortPlan(*A, n, oversampling=c), PortPlan(*C, n, oversampling=c)
    made = time.perf_counter() - start
    layer = lambda: left.matmul(right.rmatmul(x))
    calls: dict[str, Callable[[], object]] = {"port": layer}
    if n <= largest:
        W = torch.randn(n, n, generator=generator)
        calls["dense"] = lambda: torch.mv(W, x[0])
    best, repeats = least(calls)
    if n > largest:
        best["dense"] = dense[1] * (n / dense[0]) ** 2
    row = {"table": "layer", "n": n, "c": c, "port_ms": best["port"] * 1e3, "dense_ms": best["dense"] * 1e3}
    row |= {"dense_extrapolated": n > largest, "ratio": best["dense"] / best["port"], "plans_ms": made * 1e3}
    if n <= 16384:
        exact = tridiagonal.product(*(tuple(t.double() for t in side) for side in (A, C)), x.double())
        row["port_error"] = error(layer(), exact)
    return row | repeats | certified(n, A, C)


def training_row(n: int, c: int, generator: torch.Generator, batch: int = 8) -> Row:
    A, C = (tuple(t.requires_grad_() for t in near_shift(n, generator)) for _ in "AC")
    x = torch.randn(batch, n, generator=generator).requires_grad_()
    target = torch.randn(batch, n, generator=generator)

    def port() -> None:
        z = port_rmatmul(*C, x, n, oversampling=c)
        port_matmul(*A, z, oversampling=c).backward(target)

    best, repeats = least({"port": port, "stencil": lambda: tridiagonal.product(A, C, x).backward(target)})
    row = {"table": "training", "n": n, "c": c, "batch": batch, "port_ms": best["port"] * 1e3}
    return (
        row
        | {"stencil_ms": best["stencil"] * 1e3, "ratio": best["stencil"] / best["port"]}
        | repeats
        | certified(n, A, C)
    )


def shown(row: Row) -> str:
    """One line, with the verdict of its floor."""
    other = next((f"{key[:-3]} {row[key]:9.1f} ms" for key in ("stencil_ms", "dense_ms") if key in row), "")
    other += " (extrapolated)" if row.get("dense_extrapolated") else ""
    parts = [f"{row['table']:10} n {row['n']:7d}  c {row['c']}  port {row['port_ms']:8.2f} ms", other]
    parts += [f"{key} {row[key]:.2f}" for key in ("ratio", "growth") if key in row]
    parts += [f"{key} {row[key]:.0e}" for key in ("port_error", "stencil_error") if key in row]
    parts += [f"certified c {row['certified']}"] if "certified" in row else []
    return "   ".join(part for part in [*parts, "" if row.get("holds", True) else "MISSED"] if part)


def judged(row: Row, before: Row | None) -> Row:
    """With growth from the row before, of half the size, and whether floors hold."""
    holds = True
    if before and before["table"] == row["table"] and 2 * before["n"] == row["n"]:
        row["growth"] = row["port_ms"] / before["port_ms"]
        holds = row["table"] != "rmatmul" or not 8192 < row["n"] <= 1 << 17 or row["growth"] <= GROWTH
    floor = FLOORS.get((row["table"], row["n"], "ratio"))
    if floor is not None and row["c"] == row["certified"]:
        row["floor"] = floor
        holds = holds and row["ratio"] >= floor
    return row | {"holds": holds}


def on_cpu(options: argparse.Namespace) -> list[Row]:
    torch.set_num_threads(options.threads)
    shifts, layers, steps = (range(13, 18), range(13, 19), [16384])
    largest_stencil, largest_dense = 65536, 32768
    if options.quick:
        shifts, layers, steps = range(10, 13), range(10, 13), [1024]
        largest_stencil, largest_dense = 4096, 2048
    found: list[Row] = []

    def add(row: Row) -> None:
        found.append(judged(row, found[-1] if found else None))
        print(shown(found[-1]), flush=True)

    for c in options.oversampling:
        generator = torch.Generator().manual_seed(0)
        for level in shifts:
            add(rmatmul_row(1 << level, c, generator, largest_stencil))
        dense = 0, 0.0
        for level in layers:
            add(layer_row(1 << level, c, generator, dense, largest_dense))
            if not found[-1]["dense_extrapolated"]:
                dense = 1 << level, found[-1]["dense_ms"] / 1e3
        for n in steps:
            add(training_row(n, c, generator))
    return found


@torch.no_grad()
def on_cuda(options: argparse.Namespace) -> list[Row]:
    """A layer of two plans and a dense one, each replayed from its own graph."""
    n, batch = (4096, 8) if options.quick else (65536, 8)
    found = []
    generator = torch.Generator().manual_seed(0)
    A, C = (near_shift(n, generator) for _ in "AC")
    x = torch.randn(batch, n, generator=generator)
    X = x.cuda()
    torch.backends.cuda.matmul.allow_tf32 = True
    W = torch.randn(n, n, device="cuda")
    dense = captured(lambda: torch.nn.functional.linear(X, W)).replay
    torch.backends.cuda.matmul.allow_tf32 = False  # the plans keep float32
    exact = None
    for c in options.oversampling:
        left = PortPlan(*(t.cuda() for t in A), n, oversampling=c)
        right = PortPlan(*(t.cuda() for t in C), n, oversampling=c)
        layer = captured(lambda left=left, right=right: left.matmul(right.rmatmul(X))).replay
        best = on_device({"port": layer, "dense": dense})
        if exact is None:  # by plans in float64 on the CPU, twice the oversampling
            wide = [PortPlan(*(t.double() for t in side), n, oversampling=8) for side in (A, C)]
            exact = wide[0].matmul(wide[1].rmatmul(x.double()))
        row = {"table": "cuda layer", "n": n, "c": c, "batch": batch, "port_ms": best["port"] * 1e3}
        row |= {"dense_ms": best["dense"] * 1e3, "ratio": best["dense"] / best["port"], "repeats": 50}
        row["port_error"] = error(left.matmul(right.rmatmul(X)).cpu(), exact)
        row["memory_mb"] = torch.cuda.memory_allocated() / 1e6
        row |= certified(n, A, C)
        found.append(judged(row, None))
        print(shown(found[-1]), flush=True)
        del left, right, layer
    return found


def on_device(candidates: dict[str, Callable[[], object]], rounds: int = 50) -> dict[str, float]:
    """The least seconds of each by the device's clock, in turn."""
    best = dict.fromkeys(candidates, math.inf)
    for _ in range(rounds):
        for name, call in candidates.items():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            stop.record()
            stop.synchronize()
            best[name] = min(best[name], start.elapsed_time(stop) / 1e3)
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, no floors")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--oversampling", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = on_cuda(options) if options.device == "cuda" else on_cpu(options)
    name = "port_speed.json" if options.device == "cpu" else "port_speed_cuda.json"
    out = options.out or (None if options.quick else Path("results/bench") / name)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        found = {"machine": machine(), "clock": "wall", "growth_at_most": GROWTH, "rows": rows}
        out.write_text(json.dumps(found, indent=1) + "\n")
    return int(any(not row["holds"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
