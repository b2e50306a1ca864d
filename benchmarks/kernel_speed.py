"""What the hand-written CUDA kernels of the experiments gain over torch's operations, on a GPU.

    python benchmarks/kernel_speed.py [--out results/bench/kernel_speed.json]

Both sides do the same work at the sizes of the paper's experiments, forward and backward, each captured as a
CUDA graph: torch's side pays for its kernels, not for their launches from Python. The sides take turns; a
number is the minimum over rounds, a ratio torch's time / ours.

    stage         convolution, ReLU and pooling of twelve CNNs, both stages of the LeNet-like network
    recurrence    35 steps of small LSTMs; beside it torch's nn.LSTM (cuDNN), one model after the other
    decoder       loss and gradients of 33,278 words in bfloat16, and the step of descent
    weights       the dense matrices of LDR-SD layers, by scans against doubling
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from torchldr.experiments.language import cuda_decoder, cuda_recurrence, decoder, recurrence
from torchldr.experiments.stacked_stage import plain_stage, stage
from torchldr.functional.doubling import shifted_sum
from torchldr.functional.scanned import stein_matrix
from torchldr.timing import captured, machine

Call = Callable[[], object]
TOKENS, STEPS, BATCH, UNITS, WORDS = 700, 35, 20, 128, 33_278


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


@contextlib.contextmanager
def without(kernels: Any) -> Iterator[None]:
    """Let the plain form serve in place of a module's kernels."""
    with mock.patch.object(kernels, "serves", return_value=False):
        yield


def differentiated(function: Callable[..., Tensor], *leaves: Tensor) -> Call:
    """Forward and backward of a function of these tensors."""
    wanted = [t.requires_grad_() for t in leaves]
    gradient = torch.randn_like(function(*wanted))
    return lambda: torch.autograd.grad(function(*wanted), wanted, gradient)


def stages() -> Iterator[tuple[str, dict[str, Call]]]:
    R, b = 12, 50
    for name, channels, filters, side in (("first", 3, 6, 32), ("second", 6, 16, 16)):
        weight, bias = randn(R, filters, channels, 5, 5, scale=0.1), randn(R, filters)
        x = randn(1 if name == "first" else R, b, channels, side, side)
        leaves = (weight, bias) if name == "first" else (weight, bias, x)  # images need no gradient

        def side_of(form: Callable[..., Tensor], given: Tensor = x, leaves: Any = leaves) -> Call:
            return differentiated(lambda w, v, *image: form(*(image or (given,)), w, v), *leaves)

        yield f"stage, {name}, 12 CNNs", {"torch": side_of(plain_stage), "ours": side_of(stage)}


def recurrences() -> Iterator[tuple[str, dict[str, Call]]]:
    for R in (1, 19):
        U = randn(R, 4 * UNITS, UNITS, scale=0.05)
        h, c = randn(R, BATCH, UNITS), randn(R, BATCH, UNITS)
        inputs, dh = randn(R, STEPS, BATCH, 4 * UNITS), randn(R, STEPS, BATCH, UNITS)

        def ours(
            inputs: Tensor = inputs, U: Tensor = U, h: Tensor = h, c: Tensor = c, dh: Tensor = dh
        ) -> None:
            trace = recurrence.forward(inputs.clone(), U, h, c)
            da = recurrence.backward(trace, U, dh.clone())
            torch.bmm(da.flatten(1, 2).mT, trace.h[:, :-1].flatten(1, 2))  # the gradient of U

        def plain(ours: Call = ours) -> None:
            with without(cuda_recurrence):
                ours()

        layers = [nn.LSTM(UNITS, UNITS).cuda() for _ in range(R)]
        x = randn(STEPS, BATCH, UNITS)

        def cudnn(layers: list[nn.LSTM] = layers, x: Tensor = x) -> None:
            for layer in layers:
                y = layer(x)[0]
                torch.autograd.grad(y, list(layer.parameters()), torch.ones_like(y))

        yield f"recurrence, {R} LSTM{'s' * (R > 1)}", {"torch": plain, "cudnn": cudnn, "ours": ours}


def decoders() -> Iterator[tuple[str, dict[str, Call]]]:
    for R in (1, 6):
        wide = torch.stack([decoder.pack(randn(WORDS, UNITS, scale=0.1), randn(WORDS)) for _ in range(R)])
        narrow, h = decoder.narrowed(wide, "bf16"), randn(R, TOKENS, UNITS)
        targets = torch.randint(WORDS, (TOKENS,), device="cuda")
        scale = torch.full((R,), -1e-9, device="cuda")

        def ours(
            h: Tensor = h,
            wide: Tensor = wide,
            narrow: Tensor = narrow,
            targets: Tensor = targets,
            scale: Tensor = scale,
        ) -> None:
            _, _, d = decoder.loss_and_gradients(h, narrow, targets)
            decoder.update(wide, narrow, d, scale)

        def plain(ours: Call = ours) -> None:
            with without(cuda_decoder):
                ours()

        yield f"decoder, {R} model{'s' * (R > 1)}", {"torch": plain, "ours": ours}


def weights() -> Iterator[tuple[str, dict[str, Call]]]:
    for count, n in ((76, 128), (9, 1024), (12, 3072)):
        a, c, E = randn(count, n), randn(count, n), randn(count, n, n)
        for t in (a, c):
            t.clamp_(-1, 1)
        yield (
            f"weights, {count} of {n} x {n}",
            {
                "torch": differentiated(lambda a, c, E, n=n: shifted_sum(E, a, c, n), a, c, E),
                "ours": differentiated(stein_matrix, a, c, E),
            },
        )


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
    for group in (stages, recurrences, decoders, weights):
        for what, calls in group():
            ms = milliseconds(calls)
            row = {"what": what, **{f"{side}_ms": value for side, value in ms.items()}}
            rows.append(row | {"ratio": ms["torch"] / ms["ours"]})
            told = ", ".join(f"{side} {value:.3f} ms" for side, value in ms.items())
            print(f"{what:28} {told}: {rows[-1]['ratio']:.1f}", flush=True)
            torch.cuda.empty_cache()
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
