"""The experiments' own CUDA kernels against the same made of torch's operations, forward and backward.

    python benchmarks/kernel_speed.py [--out results/bench/kernel_speed.json]

Both sides are captured as CUDA graphs, as a training step is, so that neither waits for launches, and take
turns. cuDNN may choose its algorithms by trying them; convolutions are in float32 on both sides.

    stage         convolution, ReLU and max-pooling of the CNN, twelve replicas, 50 images
    recurrence    35 steps of an LSTM of 128 units, 20 columns, against a loop over steps: one replica and six
    decoder       loss and gradients over 33,278 words, 700 tokens, six replicas in bfloat16; three products
                  are common to both sides
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from torchldr.experiments.language import cuda_decoder, cuda_recurrence, decoder, recurrence
from torchldr.experiments.stacked_stage import plain_stage, stage
from torchldr.functional.cuda import unavailable
from torchldr.timing import captured, machine

REPEATS = 5


def milliseconds(steps: Sequence[Callable[[], Any]], count: int = 50) -> list[float]:
    """Least mean of several rounds of replays for each, in turn."""
    graphs, best = [captured(step) for step in steps], [float("inf")] * len(steps)
    for _ in range(REPEATS):
        for index, graph in enumerate(graphs):
            graph.replay()
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(count):
                graph.replay()
            torch.cuda.synchronize()
            best[index] = min(best[index], (time.perf_counter() - begun) / count)
    return [1e3 * seconds for seconds in best]


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda")


def stages() -> Iterator[dict[str, Any]]:
    R, b = 12, 50
    for name, x_shape, channels in (
        ("first, CIFAR-10", (1, b, 3, 32, 32), 6),
        ("second, CIFAR-10", (R, b, 6, 16, 16), 16),
        ("first, MNIST", (1, b, 1, 28, 28), 6),
        ("second, MNIST", (R, b, 6, 14, 14), 16),
    ):
        x = normal(*x_shape).requires_grad_(x_shape[0] == R)
        weight = (0.1 * normal(R, channels, x_shape[2], 5, 5)).requires_grad_()
        bias = normal(R, channels).requires_grad_()
        u = normal(R, b, channels, x_shape[3] // 2, x_shape[4] // 2)
        wanted = [t for t in (x, weight, bias) if t.requires_grad]

        def step(function: Callable[..., Tensor], wanted=wanted, x=x, weight=weight, bias=bias, u=u) -> Any:
            return torch.autograd.grad(function(x, weight, bias), wanted, u)

        yield row("stage", name, lambda step=step: step(stage), lambda step=step: step(plain_stage))


def recurrences() -> Iterator[dict[str, Any]]:
    T, B, H = 35, 20, 128
    for R in (1, 6):
        U, h, c = 0.1 * normal(R, 4 * H, H), normal(R, B, H), normal(R, B, H)
        inputs, dh = normal(R, T, B, 4 * H), normal(R, T, B, H)

        def step(U=U, h=h, c=c, inputs=inputs, dh=dh) -> Tensor:
            return recurrence.backward(recurrence.forward(inputs.clone(), U, h, c), U, dh.clone())

        def plain(step=step) -> Tensor:
            with mock.patch.object(cuda_recurrence, "serves", return_value=False):
                return step()

        yield row("recurrence", f"{R} replica{'s' if R > 1 else ''}", step, plain)


def decoders() -> Iterator[dict[str, Any]]:
    R, tokens, words, H = 6, 700, 33_278, 128
    packed = decoder.pack(0.1 * normal(R, words, H), normal(R, words)).bfloat16()
    h, targets = normal(R, tokens, H), torch.randint(0, words, (tokens,), device="cuda")

    def step() -> Any:
        return decoder.loss_and_gradients(h, packed, targets)

    def plain() -> Any:
        with mock.patch.object(cuda_decoder, "serves", return_value=False):
            return step()

    yield row("decoder", "loss and gradients", step, plain)


def row(kernel: str, case: str, ours: Callable[[], Any], torchs: Callable[[], Any]) -> dict[str, Any]:
    times = milliseconds(ours), milliseconds(torchs)
    return {
        "kernel": kernel,
        "case": case,
        "ms": times[0],
        "torch_ms": times[1],
        "ratio": times[1] / times[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if (why := unavailable()) is not None:
        parser.error(why)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, False
    torch.manual_seed(0)
    rows = []
    for part in (stages, recurrences, decoders):
        for found in part():
            rows.append(found)
            print(
                f"{found['kernel']:11} {found['case']:20}{found['ms']:8.3f} ms, torch's operations "
                f"{found['torch_ms']:8.3f} ms, {found['ratio']:5.1f} times",
                flush=True,
            )
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
