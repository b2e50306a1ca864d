"""How good the choice of routes is: every route timed over a grid, and the regret of the one that is chosen.

    python benchmarks/routes.py [--device cuda] [--quick] [--out results/bench/routes_cpu.json]

For each class, size, batch, rank, dtype, and for inference and training, all routes that serve are timed in
one run. The regret of a case is the time of the chosen route over that of the best one. Prints its median,
the share of cases within 1.3, and the worst cases; the rows go to a JSON file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import torchldr
from torchldr import StructuredLinear
from torchldr.timing import machine, minimum_seconds

SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
BATCHES = (1, 8, 64, 256, 4096)
RANKS = (1, 4, 16)
DTYPES = (torch.float32, torch.bfloat16)
MOST_SECONDS = 3.0  # a route that should take longer by its cost is not timed: it cannot be the best
FAR = 30  # neither is one that should take so many times as long as the cheapest


def cases(arguments: argparse.Namespace) -> Iterator[tuple[str, int, int, int, torch.dtype, bool]]:
    sizes = SIZES[::3] if arguments.quick else SIZES
    batches = (1, 64) if arguments.quick else BATCHES
    ranks = (1,) if arguments.quick else RANKS
    dtypes = DTYPES[:1] if arguments.quick else DTYPES
    for name in arguments.structures or torchldr.structures():
        own = ranks if torchldr.get_structure(name).ranked else (1,)
        for n, rank, batch, dtype, training in itertools.product(sizes, own, batches, dtypes, (False, True)):
            if n <= arguments.largest and n * batch <= arguments.most and name != "dense":
                yield name, n, rank, batch, dtype, training


def timed(
    name: str, n: int, rank: int, batch: int, dtype: torch.dtype, training: bool, device: str
) -> dict[str, Any]:
    cls = torchldr.get_structure(name)
    layer = StructuredLinear(
        n, n, structure=cls, rank=rank if cls.ranked else None, device=device, dtype=dtype
    )
    layer.train(training)
    x = torch.randn(batch, n, device=device, dtype=dtype, requires_grad=training)
    with torch.set_grad_enabled(training):
        table = layer.routes(x)
        cheapest = min(row.seconds for row in table if row.why_not is None)
        seconds: dict[str, float] = {}
        for row in table:
            if row.why_not is not None or row.seconds > MOST_SECONDS or row.seconds > FAR * cheapest:
                continue
            layer.route = row.route

            def call() -> None:
                y = layer(x)
                if training:
                    y.sum().backward()
                if device == "cuda":
                    torch.cuda.synchronize()

            try:
                seconds |= minimum_seconds({row.route: call}, repeats=3, seconds=0.02)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
    best = min(seconds, key=lambda route: seconds[route], default=None)
    return {
        "structure": name, "n": n, "rank": rank, "batch": batch, "dtype": str(dtype).removeprefix("torch."),
        "training": training, "chosen": table.chosen, "best": best,
        "regret": seconds[table.chosen] / seconds[best] if best and table.chosen in seconds else None,
        "us": {route: round(s * 1e6, 2) for route, s in seconds.items()},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--structures", nargs="*")
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="features")
    parser.add_argument("--most", type=int, default=1 << 24, help="entries of an input")
    parser.add_argument("--seconds", type=float, help="stop then: cases come in random order")
    parser.add_argument("--seed", type=int, default=0, help="of that order")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows, ordered, end = [], list(cases(arguments)), time.monotonic() + (arguments.seconds or math.inf)
    if arguments.seconds is not None:
        random.Random(arguments.seed).shuffle(ordered)
    for case in ordered:
        if time.monotonic() > end:
            break
        rows.append(timed(*case, arguments.device))
        row = rows[-1]
        shown = "-" if row["regret"] is None else f"{row['regret']:.2f}"
        kind = "training" if row["training"] else "inference"
        case = f"n {row['n']:6} r {row['rank']:2} b {row['batch']:5} {row['dtype']:8} {kind:9}"
        print(f"{row['structure']:16} {case} {shown:>6} {row['chosen']} {row['us']}", flush=True)
    regrets = [row["regret"] for row in rows if row["regret"] is not None]
    summary = {
        "cases": len(rows),
        "of": len(ordered),
        "median": statistics.median(regrets),
        "within_1.3": sum(regret <= 1.3 for regret in regrets) / len(regrets),
        "worst": max(regrets),
    }
    print(summary)
    for row in sorted(rows, key=lambda row: -(row["regret"] or 0))[:20]:
        print(
            {
                key: row[key]
                for key in (
                    "structure",
                    "n",
                    "rank",
                    "batch",
                    "dtype",
                    "training",
                    "chosen",
                    "best",
                    "regret",
                )
            }
        )
    if arguments.out:
        arguments.out.write_text(json.dumps({"machine": machine(), "summary": summary, "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
