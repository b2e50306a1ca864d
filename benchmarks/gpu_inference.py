"""Inference on a GPU over nn.Linear, by size and rows: eager as a user calls it, and in a captured graph.

    python benchmarks/gpu_inference.py [--out results/bench/gpu_inference.json] [--classes ldr_sd] [--n 16384]

Layers have a bias, are frozen for their rows (`torchldr.freeze`) and run under `no_grad`; float32 where
products may take TF32, and bfloat16 parameters. Ratio is dense / ours, from minima over rounds in which the
two take turns.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from gain import CLASSES, LONGEST, ratio, seconds, step
from torch import nn

from torchldr import StructuredLinear
from torchldr.timing import captured, machine

SIZES = 1024, 2048, 4096, 8192, 16384
BATCHES = 1, 64, 512, 4096
MODES = {"tf32": torch.float32, "bfloat16": torch.bfloat16}


def replays(call: Callable[[], object]) -> Callable[[], object]:
    return captured(call).replay


def cells(n: int, batch: int, mode: str, names: list[str], rounds: int) -> Iterator[dict[str, Any]]:
    like: dict[str, Any] = {"device": "cuda", "dtype": MODES[mode]}
    x = torch.randn(batch, n, **like)
    dense = step(nn.Linear(n, n, **like), x, training=False)
    for name in names:
        options = CLASSES[name]
        layer = StructuredLinear(n, n, structure=name, **options, **like)
        ours = step(layer, x, training=False)
        ours()
        if seconds(ours, 1, "cuda") > LONGEST:
            continue
        row = {"structure": name, "rank": options.get("rank"), "n": n, "batch": batch, "mode": mode}
        with torch.no_grad():
            row["product"] = layer.matrix().products(batch, frozen=True).taken
        for how, change in (("eager", lambda call: call), ("captured", replays)):
            try:
                own, theirs = ratio(change(ours), change(dense), rounds, "cuda")
            except torch.cuda.OutOfMemoryError:
                continue
            finally:
                torch.cuda.empty_cache()
            row |= {f"{how}_us": own * 1e6, f"{how}_dense_us": theirs * 1e6, how: theirs / own}
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--classes", nargs="*", default=list(CLASSES), choices=list(CLASSES))
    parser.add_argument("--n", nargs="*", type=int, default=SIZES, help="sizes alone")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(0)
    rows = []
    for n in arguments.n[:2] if arguments.quick else arguments.n:
        for batch in BATCHES:
            for mode in MODES:
                for row in cells(n, batch, mode, arguments.classes, 3 if arguments.quick else 8):
                    rows.append(row)
                    print(*(f"{v:.3g}" if isinstance(v, float) else v for v in row.values()), flush=True)
        if arguments.out is not None:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
