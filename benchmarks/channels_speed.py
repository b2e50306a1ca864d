"""StructuredChannels by fast products against its dense block matrix, in training and in inference.

    python benchmarks/channels_speed.py [--device cuda] [--out results/bench/channels_speed.json]

Square grids of channels; a step of training is forward and backward, the gradient of the input included.
Each number is the least time of a call, a ratio the time of fast products / that of dense ones: above 1 the
dense matrix is faster. Training makes it at every call; in inference layers are frozen (`torchldr.freeze`).
"auto" is the product that the layer takes by itself. On a GPU the largest memory of each is noted too.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import torch

import torchldr
from torchldr import StructuredChannels
from torchldr.timing import machine

# Channels on each side and entries of a channel, by device and class.
CASES: dict[str, dict[str, tuple[tuple[int, int], ...]]] = {
    "cpu": {
        "ldr_sd": ((3, 256), (3, 1024)),
        "toeplitz_like": ((3, 256), (3, 1024)),
        "hankel_like": ((3, 256), (3, 1024)),
        "low_rank": ((3, 256), (3, 1024)),
        "ldr_td": ((3, 256), (1, 1024)),
        "vandermonde_like": ((3, 256),),
        "cauchy_like": ((3, 256),),
        "circulant": ((3, 256), (3, 1024)),
        "acdc": ((3, 256), (3, 1024)),
    },
    "cuda": {
        "toeplitz_like": ((1, 2048), (1, 4096), (2, 2048), (5, 1024)),
        "ldr_sd": ((1, 4096), (2, 4096), (5, 1024)),
        "low_rank": ((3, 1024), (8, 1024), (1, 4096)),
        "ldr_td": ((3, 256), (3, 1024), (1, 2048)),
        "circulant": ((3, 1024), (8, 1024)),
        "hankel_like": ((1, 4096),),
    },
}
RANKS = (1, 4, 16)
BATCHES = {
    ("cpu", "training"): (50,),
    ("cpu", "inference"): (1, 50),
    ("cuda", "training"): (50, 1024),
    ("cuda", "inference"): (1, 1024),
}


def call_ms(layer: torch.nn.Module, x: torch.Tensor, rounds: int, calls: int) -> float:
    """The least time of a call over rounds of several, with gradients for a layer in training."""

    def wait() -> None:
        if x.is_cuda:
            torch.cuda.synchronize()

    best = float("inf")
    for _ in range(rounds + 1):  # the first is slower
        wait()
        begun = time.perf_counter()
        for _ in range(calls):
            if layer.training:
                layer.zero_grad(set_to_none=False)
                layer(x).square().sum().backward()
            else:
                layer(x)
        wait()
        best = min(best, (time.perf_counter() - begun) / calls)
    return 1e3 * best


def rows(device: str, what: str) -> Iterator[dict[str, object]]:
    rounds, calls = (8, 3) if device == "cuda" else (3, 1)
    for structure, cases in CASES[device].items():
        ranks = RANKS if torchldr.get_structure(structure).ranked else (None,)
        for (channels, n), rank, batch in product(cases, ranks, BATCHES[device, what]):
            layer = StructuredChannels(
                channels, channels, n, structure=structure, rank=rank, bias=False, device=device
            )
            layer.train(what == "training")
            x = torch.randn(batch, channels, n, device=device, requires_grad=layer.training)
            row: dict[str, object] = {"what": what, "structure": structure, "channels": channels}
            row |= {"features": n, "rank": rank, "batch": batch, "auto": layer.products(x).taken}
            times = {}
            for way in ("fast", "dense"):
                layer.product = way
                module = layer if layer.training else torchldr.freeze(layer, x)
                if device == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                row[f"{way}_ms"] = times[way] = call_ms(module, x, rounds, calls)
                if device == "cuda":
                    row[f"{way}_mib"] = torch.cuda.max_memory_allocated() / 2**20
            yield {**row, "ratio": times["fast"] / times["dense"]}


def told(row: dict[str, object]) -> dict[str, object]:
    """The row, printed."""
    grid = f"{row['channels']} x {row['channels']} of {row['features']:4}"
    case = f"{row['what']:9}  {row['structure']:16}  {grid}"
    case += f"  rank {row['rank'] or '-':>2}  batch {row['batch']:4}"
    times = f"fast {row['fast_ms']:8.2f} ms, dense {row['dense_ms']:8.2f} ms: {row['ratio']:7.2f}"
    print(f"{case}  {times}  auto: {row['auto']}", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=tuple(CASES), default="cpu")
    parser.add_argument("--out", type=Path, help="Write the result as JSON to this file.")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    found = []
    for what in ("training", "inference"):
        with torch.set_grad_enabled(what == "training"):
            found += [told(row) for row in rows(arguments.device, what)]
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"machine": machine(), "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
