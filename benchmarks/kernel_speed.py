"""What the hand-written CUDA kernels of the experiments gain over torch's operations, on a GPU.

    python benchmarks/kernel_speed.py [--out results/bench/kernel_speed.json]

Both sides do the same work at the sizes of the paper's experiments, forward and backward, each captured as a
CUDA graph: torch's side pays for its kernels, not for their launches from Python. The sides take turns; a
number is the minimum over rounds, a ratio torch's time / ours. cuDNN may use TF32, as is torch's default.

    stage         convolution, ReLU and pooling of twelve CNNs, both stages of the LeNet-like network
    recurrence    35 steps of small LSTMs; beside it torch's nn.LSTM (cuDNN), one model after the other
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from torchldr.timing import captured, machine
from torchldr_paper.language import recurrence
from torchldr_paper.models.stage import plain_stage, stage

Call = Callable[[], object]
STEPS, BATCH, UNITS = 35, 20, 128


def randn(*shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, device="cuda")


def milliseconds(calls: dict[str, Call], rounds: int = 15, replays: int = 20) -> dict[str, float]:
    """The least time of a replay of each call."""
    graphs = {name: captured(call) for name, call in calls.items()}
    best = dict.fromkeys(graphs, float("inf"))
    for _ in range(rounds):
        for name, graph in graphs.items():
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(replays):
                graph.replay()
            torch.cuda.synchronize()
            best[name] = min(best[name], 1e3 * (time.perf_counter() - begun) / replays)
    return best


def without(kernels: Any, call: Call) -> Call:
    """A call in which the plain form serves in place of a module's kernels."""

    def plain() -> object:
        with mock.patch.object(kernels, "serves", return_value=False):
            return call()

    return plain


def differentiated(function: Callable[..., Tensor], *leaves: Tensor) -> Call:
    """Forward and backward of a function of these tensors."""
    wanted = [t.requires_grad_() for t in leaves]
    gradient = torch.randn_like(function(*wanted))
    return lambda: torch.autograd.grad(function(*wanted), wanted, gradient)


def stages(channels: int, filters: int, side: int, *, images: bool) -> dict[str, Call]:
    """A stage of twelve CNNs; of images, common to all, no gradient is asked."""
    weight, bias = randn(12, filters, channels, 5, 5, scale=0.1), randn(12, filters)
    x = randn(1 if images else 12, 50, channels, side, side)

    def call(form: Callable[..., Tensor]) -> Call:
        if images:
            return differentiated(lambda w, b: form(x, w, b), weight, bias)
        return differentiated(form, x, weight, bias)

    return {"torch": call(plain_stage), "ours": call(stage)}


def recurrences(R: int) -> dict[str, Call]:
    U = randn(R, 4 * UNITS, UNITS, scale=0.05)
    h, c = randn(R, BATCH, UNITS), randn(R, BATCH, UNITS)
    inputs, dh = randn(R, STEPS, BATCH, 4 * UNITS), randn(R, STEPS, BATCH, UNITS)
    layers = [nn.LSTM(UNITS, UNITS).cuda() for _ in range(R)]
    x = randn(STEPS, BATCH, UNITS)

    def ours() -> None:
        trace = recurrence.forward(inputs.clone(), U, h, c)
        da = recurrence.backward(trace, U, dh.clone())
        torch.bmm(da.flatten(1, 2).mT, trace.h[:, :-1].flatten(1, 2))  # the gradient of U

    def cudnn() -> None:
        for layer in layers:
            y = layer(x)[0]
            torch.autograd.grad(y, list(layer.parameters()), torch.ones_like(y))

    return {"torch": without(recurrence, ours), "cudnn": cudnn, "ours": ours}


CASES: dict[str, Callable[[], dict[str, Call]]] = {
    "stage, first, 12 CNNs": lambda: stages(3, 6, 32, images=True),
    "stage, second, 12 CNNs": lambda: stages(6, 16, 16, images=False),
    "recurrence, 1 LSTM": lambda: recurrences(1),
    "recurrence, 19 LSTMs": lambda: recurrences(19),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="Write the result as JSON to this file.")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(2, "kernel_speed: torch finds no GPU here.\n")
    torch.manual_seed(0)
    rows = []
    for what, calls in CASES.items():
        ms = milliseconds(calls())
        ratio = ms["torch"] / ms["ours"]
        rows.append({"what": what, **{f"{side}_ms": value for side, value in ms.items()}, "ratio": ratio})
        told = ", ".join(f"{side} {value:.3f} ms" for side, value in ms.items())
        print(f"{what:28} {told}: {ratio:.1f}", flush=True)
        torch.cuda.empty_cache()
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
