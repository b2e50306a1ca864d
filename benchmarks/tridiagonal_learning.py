"""Learning with LDR-TD where it is large, and how its operators move.

    python benchmarks/tridiagonal_learning.py [--quick] [--device cuda] [--seeds 3] [--epochs 4]

Networks with one hidden layer, n -> n (structured, no bias) -> ReLU -> classes, trained by Adam:

    warped     n = 4096: CIFAR-10 grey images, 64 x 64, seen through a fixed smooth warp of the plane
    signals    n = 8192: one of ten slow waveforms at a random time, in noise, by a clock that runs unevenly
    rectangles n = 784, cifar10_grey n = 1024: the paper's own, for the operators of LDR-TD alone

On the first two, LDR-TD of rank 1, LDR-SD of rank 3 and low rank 4 have the same number of parameters in the
hidden layer, 8n, as does a dense layer of 8 hidden units ("fewer units"); the dense n x n layer stands beside
them. A line of JSON a run (--out): accuracy by epoch, seconds, and for LDR-TD what `operator_report` says of
A and C before training and after each epoch, with the spectral radius after the last. CIFAR-10 is looked for
in $TORCHLDR_DATA; without it `warped` and `cifar10_grey` are left out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

import torchldr
from torchldr.timing import machine
from torchldr_paper import data

RANKS = {"ldr_td": 1, "ldr_sd": 3, "low_rank": 4}
COMPARED = ("dense", "fewer units", "low_rank", "ldr_sd", "ldr_td")


class Task(NamedTuple):
    """Standardised examples on the device: training, validation and test inputs (count, n) and labels."""

    train: tuple[Tensor, Tensor]
    valid: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: int


# Tasks.


def parted(x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor, classes: int) -> Task:
    """A tenth of the training examples for validation; inputs standardised by the rest."""
    held = len(y) // 10
    mean, deviation = x[held:].mean(), x[held:].std()
    x, x_test = (x - mean) / deviation, (x_test - mean) / deviation
    return Task((x[held:], y[held:]), (x[:held], y[:held]), (x_test, y_test), classes)


def images(name: str, count: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """The first images of a dataset, in [0, 1], (count, 1, h, w), and a quarter as many for the test."""
    loaded = data.load(name)
    train, test = loaded.pixels()
    parts = (train[:count], loaded.train_y[:count], test[: count // 4], loaded.test_y[: count // 4])
    x, y, x_test, y_test = (torch.as_tensor(part).to(device) for part in parts)
    return x, y, x_test, y_test, loaded.classes


def warped(count: int, side: int, seed: int, device: torch.device) -> Task:
    """Images through x + a few slow waves, the same warp for all: straight shifts become curved ones."""
    x, y, x_test, y_test, classes = images("cifar10_grey", count, device)
    generator = torch.Generator().manual_seed(seed)
    axis = torch.linspace(-1, 1, side)
    place = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1)  # (side, side, 2): x, y
    moved = place.clone()
    for _ in range(4):
        wave, phase, along = (torch.rand(2, generator=generator) for _ in range(3))
        moved += (
            0.06 * (along - 0.5) * torch.sin(math.pi * (place @ (4 * wave - 2)).unsqueeze(-1) + 6 * phase)
        )
    grid = moved.unsqueeze(0).to(device)

    def seen(pictures: Tensor) -> Tensor:
        parts = pictures.split(2000)
        shown = [
            nn.functional.grid_sample(p, grid.expand(len(p), -1, -1, -1), align_corners=True) for p in parts
        ]
        return torch.cat(shown).flatten(1)

    return parted(seen(x), y, seen(x_test), y_test, classes)


def signals(
    count: int, n: int, seed: int, device: torch.device, classes: int = 10, noise_level: float = 0.5
) -> Task:
    """Waveforms of n / 4 samples from anywhere in the second quarter on, in noise, by an uneven clock."""
    generator = torch.Generator().manual_seed(seed)
    length = n // 4
    at = torch.linspace(0, 1, length)
    waves = torch.zeros(classes, length)
    for _ in range(5):
        pitch, phase = (
            0.5 + 3.5 * torch.rand(classes, 1, generator=generator),
            6.3 * torch.rand(classes, 1, generator=generator),
        )
        waves += torch.sin(2 * math.pi * pitch * at + phase)
    waves = nn.functional.pad(waves * torch.sin(math.pi * at).square(), (1, 1)).to(device)
    clock = torch.arange(n) + 0.04 * n * torch.sin(2 * math.pi * torch.arange(n) / n)
    clock = clock.to(device)

    def drawn(amount: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(classes, (amount,), generator=generator)
        starts = torch.randint(n // 4, n // 2, (amount,), generator=generator).to(device)
        noise = torch.Generator(device=device).manual_seed(
            int(torch.randint(1 << 31, (), generator=generator))
        )
        rows = []
        for y, start in zip(labels.split(500), starts.split(500), strict=True):
            read = (clock - start.unsqueeze(1)).clamp(0, length) + 0.0
            low = read.floor().long()
            wave = waves[y.to(device)]
            below, above = wave.gather(1, low), wave.gather(1, (low + 1).clamp(max=length + 1))
            rows.append(below + (read - low) * (above - below))
            rows[-1] += noise_level * torch.randn(rows[-1].shape, generator=noise, device=device)
        return torch.cat(rows), labels.to(device)

    return parted(*drawn(count), *drawn(count // 4), classes)


def task(name: str, options: argparse.Namespace) -> Task:
    device = torch.device(options.device)
    if name == "warped":
        return warped(options.examples, 16 if options.quick else 64, 0, device)
    if name == "signals":
        return signals(options.examples, 512 if options.quick else 8192, 0, device)
    x, y, x_test, y_test, classes = images(name, options.examples, device)
    return parted(x.flatten(1), y, x_test.flatten(1), y_test, classes)


# Training.


def network(kind: str, n: int, classes: int, device: str) -> nn.Sequential:
    hidden: nn.Module
    if kind == "dense":
        hidden = nn.Linear(n, n, bias=False)
    elif kind == "fewer units":
        hidden = nn.Linear(n, 8, bias=False)
    else:
        hidden = torchldr.StructuredLinear(n, n, bias=False, structure=kind, rank=RANKS[kind])
    return nn.Sequential(hidden, nn.ReLU(), nn.Linear(8 if kind == "fewer units" else n, classes)).to(device)


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    right = sum(
        int((model(a).argmax(-1) == b).sum()) for a, b in zip(x.split(500), y.split(500), strict=True)
    )
    model.train()
    return right / len(y)


def operators(model: nn.Sequential, spectrum: bool) -> list[dict[str, Any]] | None:
    hidden = model[0]
    if not isinstance(hidden, torchldr.StructuredLinear) or hidden.structure.name != "ldr_td":
        return None
    return cast(torchldr.LDRTridiagonal, hidden.matrix()).operator_report(spectrum=spectrum)


def train(
    kind: str, examples: Task, epochs: int, batch: int, rate: float, seed: int, device: str
) -> dict[str, Any]:
    """One run: its accuracies, its time without evaluation, and its operators by epoch."""
    torch.manual_seed(seed)
    x, y = examples.train
    model = network(kind, x.shape[1], examples.classes, device)
    optimizer = torch.optim.Adam(model.parameters(), rate)
    by_epoch: list[dict[str, Any]] = [{"operators": operators(model, spectrum=False)}]
    seconds = 0.0
    for epoch in range(1, epochs + 1):
        start, total = time.perf_counter(), torch.zeros((), device=device)
        for some in torch.randperm(len(y), device=device).split(batch):
            loss = nn.functional.cross_entropy(model(x[some]), y[some])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(some)
        loss_of_epoch = float(total) / len(y)  # waits for the device
        seconds += time.perf_counter() - start
        by_epoch.append(
            {
                "loss": loss_of_epoch,
                "valid": accuracy(model, *examples.valid),
                "test": accuracy(model, *examples.test),
                "operators": operators(model, spectrum=epoch == epochs),
            }
        )
    return {
        "hidden_parameters": sum(p.numel() for p in model[0].parameters()),
        "seconds_a_step": seconds / (epochs * math.ceil(len(y) / batch)),
        "layer": repr(model[0]),
        "epochs": by_epoch,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, one epoch: a test of this script")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tasks", nargs="+", default=["warped", "signals", "rectangles", "cifar10_grey"])
    parser.add_argument("--layers", nargs="+", default=list(COMPARED), choices=COMPARED)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument(
        "--examples", type=int, default=16000, help="of training; a quarter as many for the test"
    )
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3])
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no run after this time")
    parser.add_argument("--out", type=Path, default=Path("results/tridiagonal_learning.jsonl"))
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.epochs, options.examples = 1, 1, 300
    began = time.perf_counter()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    where = machine() if options.device == "cpu" else {**machine(), "gpu": torch.cuda.get_device_name()}
    tasks = {}
    for name in options.tasks:
        try:
            tasks[name] = task(name, options)
        except data.DatasetNotFoundError as error:
            print(f"{name}: left out, {error}")
    with options.out.open("w") as out:
        for seed, rate, name in itertools.product(range(options.seeds), options.rates, tasks):
            for kind in options.layers if name in ("warped", "signals") else ["ldr_td"]:
                if time.perf_counter() - began > options.seconds:
                    print(f"{name} {kind} {rate:g} seed {seed}: left out, the time is over", flush=True)
                    continue
                run = train(kind, tasks[name], options.epochs, options.batch, rate, seed, options.device)
                config = {"task": name, "kind": kind, "rate": rate, "seed": seed, "batch": options.batch}
                row = {**config, "examples": options.examples, **run, "machine": where}
                out.write(json.dumps(row) + "\n")
                out.flush()
                last, clock = run["epochs"][-1], time.perf_counter() - began
                growth = ", ".join(f"growth {row['growth']:.4f}" for row in last["operators"] or ())
                said = f"{name} {kind} {rate:g} seed {seed}: test {100 * last['test']:.1f} % {growth}"
                print(f"{clock:4.0f} s  {said}", flush=True)


if __name__ == "__main__":
    main()
