"""A training step of the fleet on a GPU: what each table of the experiments costs.

    python benchmarks/fleet_speed.py [--out results/bench/fleet_speed.json] [--steps 300]

Twelve replicas (the paper's protocol), random images of CIFAR-10's size and of MNIST's; a step is a
replayed graph, timed over many replays, so that launches overlap as in training. The last column is
what 50 epochs take at that rate.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from torchldr.timing import machine
from torchldr_paper import Images, Run
from torchldr_paper.trainer.fleet import Fleet

CELLS = (
    ("dense", None),
    ("ldr_sd", 1),
    ("ldr_sd", 16),
    ("ldr_td", 1),
    ("toeplitz_like", 4),
    ("hankel_like", 4),
    ("vandermonde_like", 4),
    ("low_rank", 4),
    ("fastfood", None),
    ("circulant", None),
)
SIZES = {"cifar10_grey": (1, 32, 42_500), "cifar10": (3, 32, 42_500), "mnist_bg_rot": (1, 28, 10_200)}


def images(run: Run) -> Images:
    channels, side, _ = SIZES[run.data]
    g = torch.Generator(device="cuda").manual_seed(0)
    shape = (channels * side * side,) if run.model == "shl" else (channels, side, side)
    x = torch.randn(20_000, *shape, device="cuda", generator=g)
    y = torch.randint(0, 10, (len(x),), device="cuda", generator=g)
    return Images(run.data, "stand-in", "", (channels, side, side), x, y, x, y, 10)


def measure(run: Run, steps: int) -> dict[str, object]:
    fleet = Fleet(run, images(run))
    fleet.feed.begin(0)
    fleet._graphs.replay(50)
    best = float("inf")
    for _ in range(3):
        fleet.feed.position.zero_()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(steps):
            fleet._graphs.replay(50)
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - begun) / steps)
    begun = time.perf_counter()
    fleet.evaluate([0.0] * 12)
    evaluation = time.perf_counter() - begun
    batches = SIZES[run.data][2] / 50
    return {
        "data": run.data,
        "model": run.model,
        "structure": run.structure,
        "rank": run.rank,
        "form": fleet.network.how,
        "step_ms": 1e3 * best,
        "evaluation_ms": 1e3 * evaluation,
        "training_s": 50 * batches * best,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    rows = []
    for data, model in (("cifar10_grey", "shl"), ("mnist_bg_rot", "shl"), ("cifar10", "cnn")):
        for structure, rank in CELLS:
            if model == "cnn" and structure in ("fastfood", "circulant"):
                continue
            row = measure(Run(data, model, structure, rank, init="paper"), arguments.steps)
            rows.append(row)
            print(
                f"{data:13} {model} {structure:17}{rank or '':>3} {row['form']:7}"
                f"{row['step_ms']:7.3f} ms a step {row['training_s']:6.1f} s",
                flush=True,
            )
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
