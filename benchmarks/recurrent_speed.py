"""Training time of StructuredLSTM and StructuredGRU against torch's layers, on this machine's CPU.

    python benchmarks/recurrent_speed.py [--quick] [--out results/bench/recurrent_speed.json]

A training step is forward and backward with all gradients, that of the input included. Sizes: 256 inputs and
256 hidden units, 32 rows, 50 steps, all matrices structured; and the paper's language model, 128 inputs and
128 hidden units, 20 rows, 35 steps, the input matrices structured. The clock is the processor time of this
process with one thread, each number the least over rounds in which both sides take turns; a ratio is our
time over torch's. Exits with 1 where one of LDR-SD and Toeplitz-like is above 1.2 at the first size.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

import torchldr
from torchldr.timing import machine

LARGEST_RATIO = 1.2
HELD = ("ldr_sd", "toeplitz_like")
PAPER = (*HELD, "low_rank")


def seconds(candidates: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """The least processor time of each candidate, which take turns."""
    best = dict.fromkeys(candidates, float("inf"))
    for call in candidates.values():
        call()
    for _ in range(rounds):
        for name, call in candidates.items():
            start = time.process_time()
            call()
            best[name] = min(best[name], time.process_time() - start)
    return best


def training_step(layer: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    gradient = torch.ones_like(layer(x)[0])

    def step() -> None:
        layer.zero_grad(set_to_none=True)
        x.grad = None
        layer(x)[0].backward(gradient)

    return step


def compare(
    cell: str,
    sizes: tuple[int, int, int, int],
    structures: Sequence[str],
    *,
    rank: int = 1,
    which: str = "input",
    products: tuple[str, ...] = ("auto",),
    rounds: int,
) -> list[dict[str, object]]:
    """Rows of results: each structure against torch's layer; sizes are inputs, hidden units, rows, steps."""
    inputs, hidden, batch, steps = sizes
    ours, theirs = {"lstm": (torchldr.StructuredLSTM, nn.LSTM), "gru": (torchldr.StructuredGRU, nn.GRU)}[cell]
    x = torch.randn(steps, batch, inputs, requires_grad=True)
    candidates = {"torch": training_step(theirs(inputs, hidden), x)}
    for name, product in itertools.product(structures, products):
        ranked = torchldr.get_structure(name).ranked
        layer = ours(inputs, hidden, structure=name, rank=rank if ranked else None, which=which)
        layer.product = product
        candidates[f"{name} {product}"] = training_step(layer, x)
    best = seconds(candidates, rounds)
    common = {"cell": cell, "input_size": inputs, "hidden_size": hidden, "batch": batch, "steps": steps}
    common |= {"rank": rank, "which": which}
    return [
        {
            **common,
            "structure": name,
            "product": product,
            "torch_ms": best["torch"] * 1e3,
            "ours_ms": best[f"{name} {product}"] * 1e3,
            "ratio": best[f"{name} {product}"] / best["torch"],
        }
        for product, name in itertools.product(products, structures)
    ]


def measure(quick: bool) -> list[dict[str, object]]:
    rounds, rows = 3 if quick else 10, []
    for cell, rank in itertools.product(("lstm", "gru"), (1, 4)):
        rows += compare(cell, (256, 256, 32, 50), HELD, rank=rank, which="both", rounds=rounds)
    if quick:
        return rows
    paper = (128, 128, 20, 35)
    rows += compare("lstm", paper, list(torchldr.structures()), rounds=rounds)
    rows += compare("lstm", paper, PAPER, rank=16, rounds=rounds)
    rows += compare("gru", paper, PAPER, rounds=rounds)
    for inputs in (1024, 2048):
        rows += compare("lstm", (inputs, 256, 20, 35), PAPER, products=("dense", "fast"), rounds=3)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the results to this file")
    parser.add_argument("--quick", action="store_true", help="the first size alone, few rounds")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows, missed = measure(arguments.quick), False
    for row in rows:
        floor = row["steps"] == 50
        late = floor and float(str(row["ratio"])) > LARGEST_RATIO
        missed |= late
        where = f"{row['cell']} {row['input_size']:5} -> {row['hidden_size']} {row['which']:6}"
        what = f"{row['structure']:17} rank {row['rank']:2} {row['product']:5}"
        times = f"torch {row['torch_ms']:8.1f} ms   ours {row['ours_ms']:8.1f} ms   ratio {row['ratio']:5.2f}"
        verdict = "   MISSED" if late else f"   at most {LARGEST_RATIO}" if floor else ""
        print(f"{where}   {what}   {times}{verdict}")
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        content = {"machine": machine(), "largest_ratio": LARGEST_RATIO, "rows": rows}
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
