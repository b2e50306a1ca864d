"""Training on a GPU: forward and backward of a layer over nn.Linear's, eager, as a user calls both.

    python benchmarks/gpu_training.py [--out results/bench/gpu_training.json] [--quick] [--captured]

A step is the layer's call and `backward` of its output, with gradients of the input and of all parameters.
Times are minima over repeats of several steps in a row, by CUDA events; the two layers take turns. Ratio is
dense / ours. `memory` is our peak over that of the dense layer. `error` is ours over the dense layer's, both
against float64: the larger of those of the output, of the input's gradient and of the parameters' gradients.
The dense layer has our matrix, rounded, and its gradient is led back to our parameters in float64.

With `--captured`, steps of both are captured in CUDA graphs and replayed.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchldr import StructuredLinear
from torchldr.timing import captured as graph_of
from torchldr.timing import machine

MODES = "bfloat16", "autocast", "tf32"
CLASSES: dict[str, tuple[dict[str, Any], tuple[int | None, ...]]] = {
    "ldr_sd": ({}, (1, 8, 16)),
    "toeplitz_like": ({}, (1, 16)),
    "hankel_like": ({}, (16,)),
    "circulant": ({}, (None,)),
    "block_circulant": ({"block_size": 16}, (None,)),
    "ldr_td": ({}, (1,)),
}
SIZES = [
    (16384, 4096),
    *((n, rows) for n in (8192, 4096, 2048, 1024) for rows in (1024, 4096, 16384)),
    (1024, 64),
]


def autocast(mode: str) -> AbstractContextManager[Any]:
    return torch.autocast("cuda", torch.bfloat16) if mode == "autocast" else nullcontext()


class Step:
    """One step of training of a layer."""

    def __init__(self, layer: nn.Module, x: Tensor, target: Tensor, mode: str) -> None:
        self.layer, self.x, self.target, self.mode = layer, x, target, mode
        self.inputs = [x, *layer.parameters()]

    def __call__(self) -> Tensor:
        for t in self.inputs:
            t.grad = None
        with autocast(self.mode):
            y: Tensor = self.layer(self.x)
        y.backward(self.target)
        return y

    def peak(self) -> int:
        """The most bytes that a step holds, with its inputs and parameters; not those of other layers."""
        self()
        for t in self.inputs:
            t.grad = None
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        own = sum(t.numel() * t.element_size() for t in (*self.inputs, self.target))
        before = torch.cuda.memory_allocated() - own
        self()
        return torch.cuda.max_memory_allocated() - before


def milliseconds(steps: list[Callable[[], object]], repeats: int) -> list[float]:
    """The shortest times of each, taking turns."""
    best = [float("inf")] * len(steps)
    for step in steps:
        for _ in range(3):
            step()
    for _ in range(repeats):
        for i, step in enumerate(steps):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            start.record()
            for _ in range(10):
                step()
            end.record()
            end.synchronize()
            best[i] = min(best[i], start.elapsed_time(end) / 10)
    return best


def errors(ours: Step, dense: Step) -> dict[str, tuple[float, float]]:
    """Of ours and of the dense layer, relative to the norm, by what is compared."""
    exact = [p.detach().double().requires_grad_() for p in ours.layer.parameters()]
    names = [name for name, _ in ours.layer.named_parameters()]
    by_name = dict(zip(names, exact, strict=True))
    tensors = {name: by_name.get(name, t.double()) for name, t in ours.layer.matrix().tensors.items()}
    W = ours.layer.matrix().with_tensors(tensors).materialize()
    with torch.no_grad():
        dense.layer.weight.copy_(W)
        dense.layer.bias.copy_(ours.layer.bias)
    x = ours.x.detach().double().requires_grad_()
    y = nn.functional.linear(x, W, by_name["bias"])
    y.backward(ours.target.double(), retain_graph=True)
    got, theirs = ours(), dense()

    def off(value: Tensor, truth: Tensor) -> float:
        return float((value.detach().double() - truth.detach()).norm() / truth.detach().norm())

    found = {"y": (off(got, y), off(theirs, y)), "x": (off(ours.x.grad, x.grad), off(dense.x.grad, x.grad))}
    wanted = [(name, p) for name, p in by_name.items() if name != "bias"]
    back = torch.autograd.grad(W, [p for _, p in wanted], dense.layer.weight.grad.double())
    own = dict(ours.layer.named_parameters())
    for (name, p), through in zip(wanted, back, strict=True):
        found[name] = off(own[name].grad, p.grad), off(through.to(own[name].dtype), p.grad)
    return found


def cell(
    n: int, rows: int, mode: str, names: list[str], repeats: int, captured: bool
) -> Iterator[dict[str, Any]]:
    dtype = torch.bfloat16 if mode == "bfloat16" else torch.float32
    torch.backends.cuda.matmul.allow_tf32 = mode == "tf32"
    factory = {"device": "cuda", "dtype": dtype}
    x = torch.randn(rows, n, **factory).requires_grad_()
    narrow = torch.float32 if mode == "tf32" else torch.bfloat16
    target = torch.randn(rows, n, device="cuda", dtype=narrow)
    dense = Step(nn.Linear(n, n, **factory), x, target, mode)
    plain = dense.peak()
    run = graph_of(dense).replay if captured else dense
    for name in names:
        options, ranks = CLASSES[name]
        for rank in ranks:
            row: dict[str, Any] = {"structure": name, "rank": rank, "n": n, "rows": rows, "mode": mode}
            layer = StructuredLinear(n, n, structure=name, rank=rank, **options, **factory)
            ours = Step(layer, x, target, mode)
            with autocast(mode):
                row["product"] = layer.products(x).taken
            try:
                memory = ours.peak()
                mine = graph_of(ours).replay if captured else ours
                theirs, own = milliseconds([run, mine], repeats)
                row |= {"dense_ms": theirs, "ours_ms": own, "ratio": theirs / own, "memory": memory / plain}
                if n <= 4096 and rows <= 4096 and not captured:
                    found = errors(ours, dense)
                    row["errors"] = {key: [round(a, 8), round(b, 8)] for key, (a, b) in found.items()}
                    row["error"] = max(a / b for a, b in found.values())
            except RuntimeError as error:
                row["failed"] = str(error).splitlines()[0]
            yield row
            del layer, ours
            gc.collect()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--captured", action="store_true")
    parser.add_argument("--classes", nargs="*", default=list(CLASSES))
    parser.add_argument("--n", nargs="*", type=int, help="sizes alone")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    sizes = [(n, rows) for n, rows in SIZES if not arguments.captured or n == 1024]
    sizes = [(n, rows) for n, rows in sizes if not arguments.n or n in arguments.n]
    rows = []
    for n, batch in sizes:
        for mode in MODES if n < 16384 else ("bfloat16",):
            names = [name for name in arguments.classes if name != "ldr_td" or n <= 4096]
            repeats = 3 if arguments.quick else 25 if n < 4096 else 7  # small ones wait for the host
            for row in cell(n, batch, mode, names, repeats, arguments.captured):
                rows.append(row)
                shown = {
                    key: round(v, 3) if isinstance(v, float) else v
                    for key, v in row.items()
                    if key != "errors"
                }
                print(*shown.values(), flush=True)
        if arguments.out is not None:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
