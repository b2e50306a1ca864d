"""What a structured layer gains over nn.Linear, by size and batch, in inference and in training.

    python benchmarks/gain.py [--device cpu] [--n 256 512 ..] [--out results/bench/gain_cpu.json] [--quick]

Both layers are called as a user calls them: eager, float32, with a bias; inference by the layer frozen for
its rows (`torchldr.freeze`) under `no_grad`, training forward and backward with gradients of the input and of
all parameters. Times are minima over repeats in which the two take turns. Ratio is dense / ours; a cell is
left out where one call of ours takes more than a second. --n: these sizes alone; rows of others stay in the
file where they come from the same machine and version.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchldr import StructuredLinear, freeze
from torchldr.timing import machine

CLASSES: dict[str, dict[str, Any]] = {
    "ldr_sd": {"rank": 1},
    "ldr_td": {"rank": 1},
    "toeplitz_like": {"rank": 4},
    "low_rank": {"rank": 16},
    "circulant": {},
    "block_circulant": {"block_size": 16},
}
SIZES = 256, 512, 1024, 2048, 4096
BATCHES = 1, 8, 64, 512
LONGEST = 1.0  # seconds of a call
ENOUGH = 2.0  # seconds of rounds, after the third


def step(layer: nn.Module, x: Tensor, training: bool) -> Callable[[], object]:
    if not training:
        served = freeze(layer, x)
        return torch.no_grad()(lambda: served(x))
    x = x.clone().requires_grad_()
    target, inputs = torch.randn(len(x), x.shape[-1], device=x.device), [x, *layer.parameters()]
    return lambda: torch.autograd.grad(layer(x), inputs, target)


def seconds(call: Callable[[], object], repeats: int, device: str) -> float:
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / repeats


def ratio(
    ours: Callable[[], object], dense: Callable[[], object], rounds: int, device: str
) -> tuple[float, float]:
    """The shortest times of both, in turns of some milliseconds."""
    best, repeats = [float("inf")] * 2, []
    for call in (ours, dense):
        seconds(call, 2, device)
        repeats.append(max(1, int(5e-3 / seconds(call, 1, device))))
    begin = time.perf_counter()
    for done in range(rounds):
        if done >= 3 and time.perf_counter() - begin > ENOUGH:
            break
        for i, call in enumerate((ours, dense)):
            best[i] = min(best[i], seconds(call, repeats[i], device))
    return best[0], best[1]


def cells(n: int, batch: int, training: bool, rounds: int, device: str) -> Iterator[dict[str, Any]]:
    x = torch.randn(batch, n, device=device)
    dense = step(nn.Linear(n, n, device=device), x, training)
    for name, options in CLASSES.items():
        ours = step(StructuredLinear(n, n, structure=name, device=device, **options), x, training)
        ours()
        if seconds(ours, 1, device) > LONGEST:
            continue
        own, theirs = ratio(ours, dense, rounds, device)
        row = {"structure": name, "rank": options.get("rank"), "n": n, "batch": batch, "training": training}
        yield {**row, "ours_us": own * 1e6, "dense_us": theirs * 1e6, "ratio": theirs / own}


def kept(out: Path | None, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Rows of a file for other sizes, from this machine and version."""
    found = json.loads(out.read_text()) if out is not None and out.exists() else {}
    same = found.get("machine") == machine()
    return [row for row in found.get("rows", []) if same and row["n"] not in sizes]


def place(row: dict[str, Any]) -> tuple[int, int, bool]:
    return row["n"], row["batch"], row["training"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--n", type=int, nargs="+", default=SIZES)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows = kept(arguments.out, arguments.n)
    for n in SIZES[:3] if arguments.quick else arguments.n:
        for batch in BATCHES:
            for training in (False, True):
                for row in cells(n, batch, training, 3 if arguments.quick else 12, arguments.device):
                    rows.append(row)
                    print(*(f"{v:.3g}" if isinstance(v, float) else v for v in row.values()), flush=True)
        if arguments.out is not None:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(
                json.dumps({"machine": machine(), "rows": sorted(rows, key=place)}, indent=1) + "\n"
            )


if __name__ == "__main__":
    main()
