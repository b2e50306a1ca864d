"""Draw a random member of every structured class, docs/classes/pictures/NAME.png, and all of them, all.png.

python scripts/class_pictures.py [NAME ...]
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import torchldr

SIZE, RANK, COLUMNS = 64, 2, 5
ORDER = ("low_rank", "circulant", "block_circulant", "toeplitz_like", "ldr_sd", "ldr_td", "hankel_like")
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
        show(figure.add_subplot(1, 2, i + 1), name, m, rank, title)
    return save(figure, folder / f"{name}.png")


def draw_all(folder: Path = FOLDER) -> Path:
    """Every class at the same size and rank, with the numbers that it takes; dense comes first."""
    figure = Figure(figsize=(10.2, 7.4), layout="constrained")
    names = ["dense", *ORDER]
    names += [name for name in torchldr.structures() if name not in names]
    for i, name in enumerate(names):
        cls = torchldr.get_structure(name)
        count = sum(math.prod(shape) for shape in cls.parameter_shapes(SIZE, SIZE, RANK).values())
        title = f"{name}, rank {RANK}" if cls.ranked else name
        axes = figure.add_subplot(-(-len(names) // COLUMNS), COLUMNS, i + 1)
        show(axes, name, SIZE, RANK if cls.ranked else None, title)
        axes.set_xlabel(f"{count:,} numbers", fontsize=8.5, color="#555555")
    return save(figure, folder / "all.png")


def show(axes: Axes, name: str, m: int, rank: int | None, title: str) -> None:
    generator = torch.Generator().manual_seed(1)
    cls = torchldr.get_structure(name)
    M = cls.random(m, SIZE, rank, dtype=torch.float64, generator=generator).to_dense()
    limit = float(M.abs().quantile(0.98))  # a few large entries would leave the rest pale
    axes.imshow(M.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    axes.set_title(title, fontsize=9)
    axes.set_xticks([])
    axes.set_yticks([])


def save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})  # the same bytes from every version
    return path


if __name__ == "__main__":
    for name in sys.argv[1:] or torchldr.structures():
        print(draw(name))
    print(draw_all())
