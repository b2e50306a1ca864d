"""Solving structured systems against torch.linalg.solve on the dense matrix, in one run.

    python benchmarks/solve_speed.py [--size 4096] [--threads 1] [--out results/bench/solve_speed.json]
    python benchmarks/solve_speed.py --device cuda --size 1024 4096 16384

One right-hand side, float64. The dense side is given its matrix ready made; ours starts from the
generators, refines, and estimates the condition number on the way. Times are minima over rounds in turn;
on a CPU with one thread they are CPU time, so that other processes do not count. Exits with 1 where a floor
is missed, which is for a CPU from n = 4096 on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import torchldr
from torchldr.timing import machine

FLOOR, FLOOR_FROM = 5.0, 4096  # on a CPU, and from which n on
ROUNDS = 5


def systems(n: int, device: str) -> dict[str, torchldr.matrices.LinearMap]:
    """The matrices that are solved with, by name."""
    draw = lambda cls, **options: cls.random(n, n, dtype=torch.float64, device=device, **options)
    column, row = torch.randn(2, n, dtype=torch.float64, device=device)
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


def measure(n: int, device: str, clock: Callable[[], float]) -> list[dict[str, Any]]:
    W, w = (torch.randn(*shape, dtype=torch.float64, device=device) for shape in ((n, n), (n,)))
    matrices = systems(n, device)
    for M in matrices.values():  # compiles, once for all
        M.solve(w)
    dense, best = float("inf"), dict.fromkeys(matrices, float("inf"))
    for _ in range(ROUNDS):
        dense = min(dense, seconds(lambda: torch.linalg.solve(W, w), clock))
        for name, M in matrices.items():
            best[name] = min(best[name], seconds(lambda M=M: M.solve(w), clock))
    rows = []
    for name, M in matrices.items():
        b = M @ torch.randn(n, dtype=torch.float64, device=device)
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
            }
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, nargs="+", default=[4096])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)

    def wall() -> float:
        if arguments.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    by_cpu = arguments.device == "cpu" and arguments.threads == 1
    rows, missed = [], False
    for n in arguments.size:
        floor = FLOOR if arguments.device == "cpu" and n >= FLOOR_FROM else 0
        for row in measure(n, arguments.device, time.process_time if by_cpu else wall):
            rows.append({**row, "floor": floor})
            missed |= row["ratio"] < floor
            print(
                f"{row['matrix']:22} {n:6}   dense {row['dense_ms']:7.1f} ms   ours {row['ours_ms']:7.1f} ms "
                f"by {row['method']:20} ratio {row['ratio']:6.2f}   residual {row['residual']:.0e}   "
                f"condition {row['condition']:.0e}   {'MISSED' if row['ratio'] < floor else 'ok'}",
                flush=True,
            )
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        found = {"machine": machine(), "clock": "cpu" if by_cpu else "wall", "rows": rows}
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
