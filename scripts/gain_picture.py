"""Draw what a structured layer gains over nn.Linear, from results/bench: `python scripts/gain_picture.py`."""

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

ROOT = Path(__file__).resolve().parent.parent
NAMES = {
    "ldr_sd": "LDR-SD, rank 1",
    "ldr_td": "LDR-TD, rank 1",
    "toeplitz_like": "Toeplitz-like, rank {}",
    "low_rank": "low rank 16",
    "circulant": "circulant",
    "block_circulant": "block-circulant, 16",
}
Cells = dict[tuple[int, int], float]


def cells(rows: list[dict[str, Any]], batch: str, ratio: str = "ratio", **wanted: Any) -> Cells:
    """Ratios by (n, batch) of the rows that have these values."""
    return {
        (row["n"], row[batch]): row[ratio]
        for row in rows
        if all(row[key] == value for key, value in wanted.items()) and ratio in row
    }


def panels() -> dict[str, dict[str, Cells]]:
    """By heading and class."""
    bench = ROOT / "results" / "bench"
    cpu = json.loads((bench / "gain_cpu.json").read_text())["rows"]
    gpu = json.loads((bench / "gpu_training.json").read_text())["rows"]
    eager = json.loads((bench / "gpu_inference.json").read_text())["rows"]
    ranks = {"ldr_sd": 1, "ldr_td": 1, "toeplitz_like": 16}
    found: dict[str, dict[str, Cells]] = {
        "CPU, inference": {},
        "CPU, training": {},
        "GPU, inference in TF32": {},
        "GPU, training in TF32": {},
    }
    for name in NAMES:
        found["CPU, inference"][name] = cells(cpu, "batch", structure=name, training=False)
        found["CPU, training"][name] = cells(cpu, "batch", structure=name, training=True)
        found["GPU, inference in TF32"][name] = cells(eager, "batch", "eager", structure=name, mode="tf32")
        wanted: dict[str, Any] = {"structure": name, "rank": ranks.get(name), "mode": "tf32"}
        found["GPU, training in TF32"][name] = cells(gpu, "rows", **wanted)
    return found


def draw(axis: Any, ratios: Cells, norm: LogNorm) -> None:
    sizes, batches = (sorted({key[i] for key in ratios}) for i in (0, 1))
    grid = np.array([[ratios.get((n, batch), np.nan) for n in sizes] for batch in batches])
    axis.imshow(grid, cmap="RdBu", norm=norm, aspect="auto", origin="lower")
    axis.set_xticks(range(len(sizes)), [f"{n:,}" for n in sizes], fontsize=7)
    axis.set_yticks(range(len(batches)), [f"{batch:,}" for batch in batches], fontsize=7)
    for (row, column), value in np.ndenumerate(grid):
        if np.isfinite(value):
            strong = abs(np.log(value)) > np.log(8)
            text = f"{value:.0f}" if value >= 9.95 else f"{value:.2g}"
            axis.text(
                column, row, text, ha="center", va="center", fontsize=7, color="white" if strong else "black"
            )


def main(folder: Path = ROOT / "docs" / "performance") -> Path:
    found, norm = panels(), LogNorm(1 / 32, 32)
    figure, axes = plt.subplots(len(NAMES), len(found), figsize=(12.5, 10.5), layout="constrained")
    for column, (heading, classes) in enumerate(found.items()):
        for row, (name, label) in enumerate(NAMES.items()):
            axis = axes[row, column]
            rank = 16 if heading.startswith("GPU, training") else 4
            if not classes[name]:
                axis.axis("off")
                axis.text(0.5, 0.5, "not measured", ha="center", va="center", fontsize=8, color="grey")
            else:
                draw(axis, classes[name], norm)
            axis.set_title((f"{heading}\n" if row == 0 else "") + label.format(rank), fontsize=8)
            if column == 0:
                axis.set_ylabel("rows", fontsize=8)
            if row == len(NAMES) - 1:
                axis.set_xlabel("features n", fontsize=8)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "gain.png"
    figure.savefig(path, dpi=110, metadata={"Software": None})
    return path


if __name__ == "__main__":
    print(main(*map(Path, sys.argv[1:2])))
