"""Training time of StructuredLSTM and StructuredGRU against torch's layers, on this machine's CPU.

    python benchmarks/recurrent_speed.py [--quick] [--out results/bench/recurrent_speed.json]

A training step: forward and backward, the gradient of the input included, at the sizes of the language
model in the paper (128 inputs, 128 hidden units, batch 20, 35 steps) and at larger inputs. The clock is the
processor time of this process with one thread, each number the minimum over rounds in which both sides take
turns; a ratio is our time / torch's. Exits with 1 where a floor is missed: at most 1.3 for the four input
matrices of an LSTM with 128 hidden units at rank 1, in each of the paper's classes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import torchldr
from torchldr.timing import machine

LARGEST_RATIO = 1.3
PAPER = ("ldr_sd", "toeplitz_like", "low_rank")
STEPS, BATCH = 35, 20


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
    inputs: int,
    hidden: int,
    structures: list[str],
    *,
    rank: int = 1,
    which: str = "input",
    products: tuple[str, ...] = ("auto",),
    rounds: int,
) -> list[dict[str, object]]:
    """Rows of results: each structure against torch's layer of the same size."""
    ours, theirs = {"lstm": (torchldr.StructuredLSTM, nn.LSTM), "gru": (torchldr.StructuredGRU, nn.GRU)}[cell]
    x = torch.randn(STEPS, BATCH, inputs, requires_grad=True)
    candidates = {"torch": training_step(theirs(inputs, hidden), x)}
    for name, product in itertools.product(structures, products):
        ranked = torchldr.get_structure(name).ranked
        layer = ours(inputs, hidden, structure=name, rank=rank if ranked else None, which=which)
        layer.product = product
        candidates[f"{name} {product}"] = training_step(layer, x)
    best = seconds(candidates, rounds)
    common = {"cell": cell, "input_size": inputs, "hidden_size": hidden, "rank": rank, "which": which}
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
    rounds, every = (3 if quick else 10), list(torchldr.structures())
    rows = compare("lstm", 128, 128, list(PAPER) if quick else every, rounds=rounds)
    if quick:
        return rows
    rows += compare("lstm", 128, 128, list(PAPER), rank=16, rounds=rounds)
    rows += compare("lstm", 128, 128, list(PAPER), which="both", rounds=rounds)
    rows += compare("gru", 128, 128, list(PAPER), rounds=rounds)
    for inputs in (256, 1024, 2048):
        rows += compare("lstm", inputs, 256, list(PAPER), products=("dense", "fast"), rounds=3)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the results to this file")
    parser.add_argument("--quick", action="store_true", help="the floors alone, few rounds")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows, missed = measure(arguments.quick), False
    for row in rows:
        floor = (
            (row["cell"], row["input_size"], row["rank"], row["which"]) == ("lstm", 128, 1, "input")
            and row["structure"] in PAPER
        )  # fmt: skip
        late = floor and float(str(row["ratio"])) > LARGEST_RATIO
        missed |= late
        where = f"{row['cell']} {row['input_size']:5} -> {row['hidden_size']} {row['which']:6}"
        what = f"{row['structure']:17} rank {row['rank']:2} {row['product']:5}"
        times = f"torch {row['torch_ms']:8.1f} ms   ours {row['ours_ms']:8.1f} ms   ratio {row['ratio']:5.2f}"
        verdict = "   MISSED" if late else f"   at most {LARGEST_RATIO}" if floor else ""
        print(f"{where}   {what}   {times}{verdict}")
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        settings = {"steps": STEPS, "batch": BATCH, "largest_ratio": LARGEST_RATIO}
        content = {"machine": machine(), "settings": settings, "rows": rows}
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
