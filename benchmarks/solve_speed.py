"""Solving structured systems against torch.linalg.solve on the dense matrix, in one run on a CPU.

    python benchmarks/solve_speed.py [--size 4096] [--threads 1] [--out results/bench/solve_speed.json]

One right-hand side, float64. The dense side is given its matrix ready made; ours starts from the
generators, refines, and estimates the condition number on the way. Times are minima over rounds in turn;
with one thread they are CPU time, so that other processes do not count. Exits with 1 where a floor is
missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import torchldr
from torchldr.timing import machine

FLOOR = 5.0  # at n = 4096
ROUNDS = 5


def systems(n: int) -> dict[str, torchldr.matrices.LinearMap]:
    """The matrices that are solved with, by name."""
    draw = lambda cls, **options: cls.random(n, n, dtype=torch.float64, **options)
    column, row = torch.randn(2, n, dtype=torch.float64)
    return {
        "toeplitz": torchldr.Toeplitz(column, row),
        "toeplitz_like, r = 1": draw(torchldr.ToeplitzLike, rank=1),
        "toeplitz_like, r = 2": draw(torchldr.ToeplitzLike, rank=2),
        "toeplitz_like, r = 4": draw(torchldr.ToeplitzLike, rank=4),
        "hankel_like, r = 2": draw(torchldr.HankelLike, rank=2),
        "cauchy_like, r = 1": draw(torchldr.CauchyLike, rank=1),
        "cauchy_like, r = 2": draw(torchldr.CauchyLike, rank=2),
        "ldr_sd, r = 1": draw(torchldr.LDRSubdiagonal, rank=1),
        "circulant": draw(torchldr.Circulant),
    }


def seconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    call()
    return clock() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    n = arguments.size
    torch.set_num_threads(arguments.threads)
    clock = time.process_time if arguments.threads == 1 else time.perf_counter
    torch.manual_seed(0)
    W, w = torch.randn(n, n, dtype=torch.float64), torch.randn(n, dtype=torch.float64)
    matrices = systems(n)
    for M in matrices.values():  # compiles, once for all
        M.solve(w)
    dense, best = float("inf"), dict.fromkeys(matrices, float("inf"))
    for _ in range(ROUNDS):
        dense = min(dense, seconds(lambda: torch.linalg.solve(W, w), clock))
        for name, M in matrices.items():
            best[name] = min(best[name], seconds(lambda M=M: M.solve(w), clock))
    rows = []
    for name, M in matrices.items():
        x = torch.randn(n, dtype=torch.float64)
        b = M @ x
        y = M.solve(b)
        rows.append(
            {
                "matrix": name,
                "n": n,
                "dense_ms": dense * 1e3,
                "ours_ms": best[name] * 1e3,
                "ratio": dense / best[name],
                "residual": float((M @ y - b).norm() / b.norm()),
                "condition": torchldr.linalg.condition_estimate(M),
                "method": torchldr.linalg.solvers(M)[0],
                "floor": FLOOR,
            }
        )
        verdict = "ok" if rows[-1]["ratio"] >= FLOOR else "MISSED"
        print(
            f"{name:22} dense {dense * 1e3:7.0f} ms   ours {best[name] * 1e3:7.1f} ms   "
            f"ratio {rows[-1]['ratio']:6.1f}   residual {rows[-1]['residual']:.0e}   "
            f"condition {rows[-1]['condition']:.0e}   {verdict}"
        )
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        clock_name = "cpu" if arguments.threads == 1 else "wall"
        found = {"machine": machine(), "clock": clock_name, "rows": rows}
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    return int(n >= 4096 and any(row["ratio"] < FLOOR for row in rows))


if __name__ == "__main__":
    sys.exit(main())
