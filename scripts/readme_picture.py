"""Draw the picture of the README: a dense weight, an LDR-SD weight, and the vectors that hold the latter.

python scripts/readme_picture.py [FILE]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from torchldr import LDRSubdiagonal

SIZE = 96
FILE = Path(__file__).resolve().parents[1] / "docs" / "weights.png"
INK = "#24292f"


def weights() -> tuple[Tensor, LDRSubdiagonal]:
    """A dense matrix, and one of LDR-SD with rank 1 whose operators have left their start."""
    generator = torch.Generator().manual_seed(3)
    dense = torch.randn(SIZE, SIZE, dtype=torch.float64, generator=generator)
    M = LDRSubdiagonal.random(SIZE, SIZE, 1, dtype=torch.float64, generator=generator)
    steps = torch.linspace(0, 6 * torch.pi, SIZE - 1, dtype=torch.float64)
    bent = {"subdiagonal_A": 1 + 0.08 * steps.sin(), "subdiagonal_C": 1 + 0.08 * (0.7 * steps).cos()}
    return dense, M.with_tensors({**M.tensors, **bent})


def draw(file: Path = FILE) -> Path:
    """Save the picture."""
    dense, M = weights()
    figure = Figure(figsize=(9, 3.1), layout="constrained", facecolor="white")
    parts: Any = figure.subfigures(1, 3, width_ratios=(1, 1, 1.15))
    left, middle, right = parts
    for part, matrix, title in (
        (left, dense, f"nn.Linear: {SIZE * SIZE:,} numbers"),
        (middle, M.to_dense(), f"LDR-SD, rank 1: {sum(t.numel() for t in M.tensors.values())} numbers"),
    ):
        axes = part.subplots()
        limit = float(matrix.abs().quantile(0.98))  # a few large entries would leave the rest pale
        axes.imshow(matrix.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
        axes.set_title(title, fontsize=11, color=INK)
        axes.set_xticks([])
        axes.set_yticks([])
    vectors = {
        "G": M.tensors["G"],
        "H": M.tensors["H"],
        "operator A: its subdiagonal and corner": torch.cat(
            [M.tensors["subdiagonal_A"], M.tensors["corner_A"]]
        ),
        "operator C: its subdiagonal and corner": torch.cat(
            [M.tensors["subdiagonal_C"], M.tensors["corner_C"]]
        ),
    }
    for axes, (name, values) in zip(right.subplots(len(vectors), 1), vectors.items(), strict=True):
        shown = (values - values.median()).reshape(1, -1)
        limit = float(shown.abs().quantile(0.95))
        axes.imshow(
            shown.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest"
        )
        axes.set_title(name, fontsize=9, color=INK, loc="left", pad=3)
        axes.set_xticks([])
        axes.set_yticks([])
    right.suptitle("and these are all of them", fontsize=11, color=INK)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110, metadata={"Software": None})  # the same bytes from every version
    return file


if __name__ == "__main__":
    print(draw(*map(Path, sys.argv[1:2])))
