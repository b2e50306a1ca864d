"""Train a small network on Rectangles, round it to int8 and write it as C, with some test images.

    python train.py FOLDER [--structure ldr_sd] [--rank 1] [--epochs 20] [--arithmetic integer]

The images are made here by the recipe of the published dataset: a one-pixel outline in 28 x 28 pixels; is it
wide or tall?
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from torchldr import StructuredLinear, get_structure, quantize_
from torchldr.compress import parameter_groups
from torchldr.export import CReport, IntegerReport, to_c

SIDE = 28


def rectangles(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Outlines of 1 on 0, (count, 784), and whether they are tall."""
    draw = np.random.default_rng(seed)
    images, labels = np.zeros((count, SIDE, SIDE), np.float32), np.zeros(count, np.int64)
    for image, place in zip(images, range(count), strict=True):
        h, w = 0, 0
        while abs(h - w) < 3:
            h, w = draw.integers(4, SIDE + 1, 2)
        top, left = draw.integers(0, SIDE - h + 1), draw.integers(0, SIDE - w + 1)
        image[top : top + h, [left, left + w - 1]] = 1
        image[[top, top + h - 1], left : left + w] = 1
        labels[place] = h > w
    return torch.from_numpy(images).flatten(1), torch.from_numpy(labels)


class Network(nn.Module):
    """Pixels of 0 and 1, brought to a mean of 0, through one structured layer."""

    def __init__(self, structure: str, rank: int) -> None:
        super().__init__()
        ranked = get_structure(structure).ranked
        self.hidden = StructuredLinear(784, 784, structure=structure, rank=rank if ranked else None)
        self.logits = nn.Linear(784, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits(torch.relu(self.hidden(4 * x + -0.4)))


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int) -> None:
    # Small steps for the operators: near one, the product is Fourier transforms in C.
    optimizer = torch.optim.Adam(parameter_groups(model, 1e-3))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        schedule.step()


def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    with torch.no_grad():
        return 100 * (model(x).argmax(-1) == y).double().mean().item()


def write_images(path: Path, x: torch.Tensor, y: torch.Tensor) -> None:
    """Test images as C, a byte a pixel."""
    rows = ",\n".join("{" + ",".join(str(int(v)) for v in image) + "}" for image in x)
    labels = ", ".join(str(int(label)) for label in y)
    path.write_text(
        f"#define IMAGES {len(x)}\n"
        f"static const unsigned char images[IMAGES][{x.shape[1]}] = {{\n{rows}\n}};\n"
        f"static const unsigned char labels[IMAGES] = {{{labels}}};\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="to be made")
    parser.add_argument("--structure", default="ldr_sd")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--weights", default="int8")
    parser.add_argument("--arithmetic", default="integer", choices=["integer", "float"])
    parser.add_argument("--images", type=int, default=100, help="to test on the machine")
    parser.add_argument("--examples", type=int, default=3000, help="to train with")
    chosen = parser.parse_args()
    torch.manual_seed(0)
    model = Network(chosen.structure, chosen.rank)
    images = rectangles(chosen.examples, seed=0)
    train(model, *images, chosen.epochs)
    model.eval()
    x, y = rectangles(2000, seed=1)
    before = accuracy(model, x, y)
    if chosen.arithmetic == "integer":
        made = to_c(model, x[:1], chosen.folder, arithmetic="integer", calibration=images[0][:200])
        assert isinstance(made, IntegerReport)
        report: CReport = made
        answers = made.dequantize(made.reference(made.quantize(x)))
        after = 100 * (answers.argmax(-1) == y).double().mean().item()
    else:
        report = to_c(model, x[:1], chosen.folder, weights=chosen.weights)
        after = accuracy(quantize_(model) if chosen.weights == "int8" else model, x, y)
    print(f"test accuracy {before:.2f} %, as it is exported {after:.2f} %")
    print(report)
    write_images(chosen.folder / "images.h", x[: chosen.images], y[: chosen.images])


if __name__ == "__main__":
    main()
