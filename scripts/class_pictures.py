"""Draw a random member of every structured class: docs/classes/pictures/NAME.png.

python scripts/class_pictures.py [NAME ...]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure

import torchldr

SIZE = 64
FOLDER = Path(__file__).resolve().parents[1] / "docs" / "classes" / "pictures"


def draw(name: str, folder: Path = FOLDER) -> Path:
    """Draw one class: ranks 1 and 4 beside each other where it has ranks, else square and wide."""
    cls = torchldr.get_structure(name)
    shapes: list[tuple[str, int, int | None]] = [
        (f"{SIZE} x {SIZE}", SIZE, None),
        (f"{SIZE // 2} x {SIZE}", SIZE // 2, None),
    ]
    if cls.ranked:
        shapes = [("rank 1", SIZE, 1), ("rank 4", SIZE, 4)]
    figure = Figure(figsize=(5, 2.75), layout="constrained")
    for i, (title, m, rank) in enumerate(shapes):
        generator = torch.Generator().manual_seed(1)
        M = cls.random(m, SIZE, rank, dtype=torch.float64, generator=generator).to_dense()
        limit = float(M.abs().quantile(0.98))  # a few large entries would leave the rest pale
        axes = figure.add_subplot(1, 2, i + 1)
        axes.imshow(M.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
        axes.set_title(title, fontsize=9)
        axes.set_xticks([])
        axes.set_yticks([])
    path = folder / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})  # the same bytes from every version
    return path


if __name__ == "__main__":
    for name in sys.argv[1:] or torchldr.structures():
        print(draw(name))
