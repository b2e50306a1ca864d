"""Draw what a structured layer gains on a CPU, from results/bench/gain_cpu.json.

python scripts/gain_picture.py [FOLDER]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.colors import LogNorm

from torchldr import get_structure

ROOT = Path(__file__).resolve().parent.parent
AT = 4096  # features for which sizes are told
ACROSS = 2  # classes in a line
CLASSES: dict[str, tuple[str, dict[str, Any]]] = {  # what is measured
    "ldr_sd": ("LDR-SD, rank 1", {"rank": 1}),
    "ldr_td": ("LDR-TD, rank 1", {"rank": 1}),
    "toeplitz_like": ("Toeplitz-like, rank 4", {"rank": 4}),
    "low_rank": ("low rank, 16", {"rank": 16}),
    "circulant": ("circulant", {}),
    "block_circulant": ("block-circulant, 16", {"block_size": 16}),
}
Cells = dict[tuple[int, int], float]


def panels() -> dict[str, dict[str, Cells]]:
    """By heading and class: ratios by (n, batch)."""
    rows = json.loads((ROOT / "results" / "bench" / "gain_cpu.json").read_text())["rows"]
    found: dict[str, dict[str, Cells]] = {"inference": {}, "training": {}}
    for row in rows:
        cells = found["training" if row["training"] else "inference"].setdefault(row["structure"], {})
        cells[row["n"], row["batch"]] = row["ratio"]
    return found


def smaller(name: str, rank: int = 1, **options: Any) -> float:
    """How many times fewer numbers than n^2 a matrix of `AT` features has."""
    shapes = get_structure(name).parameter_shapes(AT, AT, rank, **options)
    return AT**2 / sum(int(np.prod(shape)) for shape in shapes.values())


def written(value: float) -> str:
    if value >= 9.5 or value == 0:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 0.95 else f"{value:.2f}" if value >= 0.095 else f"{value:.1g}"


def draw(axis: Any, ratios: Cells, sizes: list[int], batches: list[int], norm: LogNorm) -> Any:
    grid = np.array([[ratios.get((n, batch), np.nan) for n in sizes] for batch in batches])
    axis.set_facecolor("#e8e8e8")
    image = axis.imshow(grid, cmap="RdBu", norm=norm, aspect="auto", origin="lower")
    axis.set_xticks(range(len(sizes)), [f"{n / 1024:.2g}k" if n >= 1024 else str(n) for n in sizes])
    axis.set_yticks(range(len(batches)), [f"{b // 1024}k" if b >= 1024 else str(b) for b in batches])
    axis.tick_params(length=0, labelsize=7)
    axis.spines[:].set_visible(False)
    for (row, column), value in np.ndenumerate(grid):
        if np.isfinite(value):
            colour = "white" if abs(np.log(value)) > np.log(8) else "black"
            axis.text(column, row, written(value), ha="center", va="center", fontsize=7, color=colour)
    return image


def main(folder: Path = ROOT / "docs" / "performance") -> Path:
    found, norm = panels(), LogNorm(1 / 32, 32)
    keys = [key for classes in found.values() for ratios in classes.values() for key in ratios]
    sizes, batches = (sorted({key[i] for key in keys}) for i in (0, 1))
    lines = -(-len(CLASSES) // ACROSS)
    figure, axes = plt.subplots(lines, 2 * ACROSS, figsize=(11, 6.4), layout="constrained")
    for i, (name, (label, options)) in enumerate(CLASSES.items()):
        line, first = divmod(i, ACROSS)
        for j, (heading, classes) in enumerate(found.items()):
            axis = axes[line, 2 * first + j]
            image = draw(axis, classes[name], sizes, batches, norm)
            if line == 0:
                axis.set_title(heading, fontsize=10, fontweight="bold")
            if line == lines - 1:
                axis.set_xlabel("features n", fontsize=8)
        size = f"{smaller(name, **options):,.0f}x smaller at n = {AT:,}"
        axes[line, 2 * first].set_ylabel(f"{label}\n{size}\n\nrows", fontsize=8)
    bar = figure.colorbar(image, ax=axes, location="bottom", shrink=0.5, aspect=40, pad=0.02)
    bar.set_ticks(
        [1 / 32, 1 / 4, 1, 4, 32], labels=["32x slower", "4x slower", "as nn.Linear", "4x faster", "32x"]
    )
    bar.ax.tick_params(which="both", length=0, labelsize=8)
    bar.outline.set_visible(False)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "gain.png"
    figure.savefig(path, dpi=150, metadata={"Software": None})
    return path


if __name__ == "__main__":
    print(main(*map(Path, sys.argv[1:2])))
