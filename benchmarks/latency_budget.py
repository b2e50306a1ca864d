"""Budgets of time, measured again: how long the layers take that `Latency` gave so many milliseconds.

    python benchmarks/latency_budget.py [--shares 0.9 0.7 0.5] [--batches 1 64] [--out FILE]

The layers have the shapes of a perceptron (six of 1024 x 1024) and of MiniLM (36 of 384 and 1536) and random
weights. The budget is a share of the dense layers' time. What the report says is compared with a new
measurement of the compressed layers, one after the other as in a model, each with an input of its own: the
shortest of many passes, taken in turns with the dense layers'.
"""

from __future__ import annotations

import argparse
import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchldr
from torchldr.timing import machine, minimum_seconds


def perceptron() -> nn.Module:
    return nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(6)))


def encoder() -> nn.Module:
    shapes = [*[(384, 384)] * 4, (384, 1536), (1536, 384)]
    return nn.Sequential(*(nn.Linear(*shape, bias=False) for _ in range(6) for shape in shapes))


def one_after_the_other(model: nn.Module, batch: int) -> Callable[[], object]:
    layers = [(torchldr.freeze(layer), torch.randn(batch, layer.in_features)) for layer in model]

    @torch.inference_mode()
    def call() -> None:
        for layer, x in layers:
            layer(x)

    return call


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.9, 0.7, 0.5])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--out", type=Path, default=Path("results/bench/latency_budget.json"))
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    warnings.filterwarnings("ignore", "compress_: the new weights are off")
    for make in (perceptron, encoder):
        torch.manual_seed(0)
        dense = make()
        for batch in options.batches:
            before = one_after_the_other(dense, batch)
            whole = 1e3 * minimum_seconds({"dense": before}, 30, 3.0)["dense"]
            for share in options.shares:
                model = copy.deepcopy(dense)
                budget = torchldr.compress.Latency(share * whole, batch)
                names = ["low_rank", "block_circulant"]
                try:
                    report = torchldr.compress_(model, budget, structures=names, time_limit=300.0)
                except ValueError as error:
                    row = {"budget": budget.ms, "error": str(error)}
                else:
                    calls = {"dense": before, "compressed": one_after_the_other(model, batch)}
                    again = minimum_seconds(calls, 30, 2.0)
                    now = 1e3 * again["compressed"]
                    row = {
                        "budget": budget.ms,
                        "dense": 1e3 * again["dense"],
                        "reported": report.latency_after,
                        "again": now,
                        "over": now / budget.ms,
                        "kept": report.parameters_after / report.parameters_before,
                    }
                rows.append({"model": make.__name__, "batch": batch, "share": share, **row})
                print(rows[-1], flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**machine(), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
