"""Projection: residual and seconds for every class, on members and on a matrix of no structure.

    python benchmarks/projection.py [--sizes 64 256] [--out results/bench/projection.json]

For every class, size n and rank: `member`, a random member of the class in float64 (its own permutation is
given to Fastfood), and `normal`, entries drawn from a normal distribution, the hardest case for every class.
ldr_sd has a second kind of member, `wide`, with subdiagonals in 1 +- .5. Seconds are those of the
processor, all threads together, and of the wall. Rows that are in the file already are measured again
where their size is asked for and kept where it is not. Exits with 1 where a member of a class with fixed
operators (or of ldr_sd) is missed, or a time limit at n = 1024.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import torchldr
from torchldr.timing import machine

FIXED = {"low_rank", "circulant", "block_circulant", "toeplitz_like", "hankel_like"}
FIXED |= {"vandermonde_like", "cauchy_like", "acdc", "dense"}
LIMITS = {"ldr_sd": 600.0, "ldr_td": 600.0}  # seconds at n = 1024, by the wall; 60 for the others
Row = dict[str, Any]


def targets(name: str, n: int, rank: int | None) -> Iterator[tuple[str, Tensor, dict[str, Tensor]]]:
    """The matrices to approximate: kind, W and tensors to pass on."""
    cls, generator = torchldr.get_structure(name), torch.Generator().manual_seed(n)
    M = cls.random(n, n, rank, dtype=torch.float64, generator=generator)
    given = {"permutation": M.permutation} if name == "fastfood" else {}
    yield "member", M.to_dense(), given
    if name == "ldr_sd" and n <= 256:
        for side in "AC":
            M.tensors[f"subdiagonal_{side}"].uniform_(0.5, 1.5, generator=generator)
        yield "wide", M.to_dense(), {}
    yield "normal", torch.randn(n, n, dtype=torch.float64, generator=generator), {}


def measure(name: str, n: int, rank: int | None) -> Iterator[Row]:
    for kind, W, given in targets(name, n, rank):
        wall, processor = time.perf_counter(), time.process_time()
        found = torchldr.from_dense(W, name, rank, **given)
        yield {
            "structure": name,
            "n": n,
            "rank": rank,
            "of": kind,
            "residual": found.residual,
            "processor_s": time.process_time() - processor,
            "wall_s": time.perf_counter() - wall,
        }


def missed(row: Row) -> str | None:
    """Why a row does not hold what the documentation says."""
    if row["of"] == "member" and row["residual"] > 1e-6 and row["structure"] in {*FIXED, "ldr_sd"}:
        return "member not found"
    if row["n"] == 1024 and row["wall_s"] > LIMITS.get(row["structure"], 60.0):
        return "too slow"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--structures", nargs="+", default=list(torchldr.structures()))
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows, failed = [], 0
    for n in arguments.sizes:
        for name in arguments.structures:
            ranks = arguments.ranks if torchldr.get_structure(name).ranked else [None]
            for rank in ranks:
                for row in measure(name, n, rank):
                    rows.append(row)
                    why = missed(row)
                    failed += why is not None
                    case = f"{name:17} n={n:5} rank={rank or '-':>2} {row['of']:7}"
                    seconds = f"{row['processor_s']:7.1f} s of processor {row['wall_s']:7.1f} s"
                    print(f"{case} residual {row['residual']:.2e} {seconds}  {why or ''}", flush=True)
                save(arguments.out, rows)
    return int(failed > 0)


def save(out: Path | None, rows: list[Row]) -> None:
    """Write after every case: a large one may take minutes."""
    if out is None:
        return
    keys = ("structure", "n", "rank", "of")
    known = json.loads(out.read_text())["rows"] if out.exists() else []
    merged = {tuple(row[key] for key in keys): row for row in [*known, *rows]}
    ordered = sorted(
        merged.values(), key=lambda row: (row["n"], row["structure"], row["rank"] or 0, row["of"])
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"machine": machine(), "rows": ordered}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
