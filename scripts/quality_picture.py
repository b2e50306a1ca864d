"""Draw the quality of compressed models over their size: `python scripts/quality_picture.py`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
Row = dict[str, Any]
# Label, method, which numbers of a row, colour, marker.
LINES = [
    ("SVD", "SVD", "before", "#999999", "x"),
    ("whitened SVD", "whitened SVD", "before", "#E69F00", "s"),
    ("pruning", "pruning", "before", "#D55E00", "v"),
    ("pruning, then trained", "pruning", "after", "#D55E00", "^"),
    ("compress_", "compress_", "before", "#56B4E9", "o"),
    ("compress_, then trained", "compress_", "after", "#0072B2", "o"),
    ("compress_, trained, int8", "compress_", "int8", "#009E73", "D"),
]
PANELS = {
    "minilm": ("MiniLM (22.7M parameters), STS-B dev", "spearman", "Spearman's correlation, %", "linear"),
    "smollm2": ("SmolLM2 (135M parameters), WikiText-2", "perplexity", "perplexity (low is good)", "log"),
}


def points(rows: list[Row], method: str, stage: str, measure: str) -> list[tuple[float, float]]:
    """Megabytes of the compressed layers and quality, by size."""
    size = "int8_bytes" if stage == "int8" else "bytes"
    found = [
        (row[size] / 1e6, row[stage][measure]) for row in rows if row["method"] == method and stage in row
    ]
    return sorted(found)


def draw(axis: Any, rows: list[Row], title: str, measure: str, label: str, scale: str) -> None:
    dense = next(row for row in rows if row["method"] == "dense")
    axis.axhline(dense["before"][measure], color="black", lw=0.8, ls=":", label="dense")
    axis.plot(
        dense["int8_bytes"] / 1e6,
        dense["int8"][measure],
        "*",
        color="black",
        ms=10,
        label="dense, trained alike, int8",
    )
    worst = 2e3 if scale == "log" else None  # SVD alone destroys the language model: beyond the picture
    for name, method, stage, colour, marker in LINES:
        found = [p for p in points(rows, method, stage, measure) if worst is None or p[1] < worst]
        if found:
            axis.plot(*zip(*found, strict=True), marker=marker, color=colour, label=name, lw=1.2)
    axis.set(title=title, xscale="log", yscale=scale, ylabel=label)
    axis.set_xlabel("megabytes of the linear layers")
    ticks = [dense["bytes"] / 1e6 / 2**k for k in range(5)]
    axis.set_xticks(ticks, [f"{x:.3g}" for x in ticks])
    axis.minorticks_off()
    if scale == "log":
        axis.set_yticks([50, 100, 200, 500, 1000], ["50", "100", "200", "500", "1000"])


def main(folder: Path) -> None:
    rows = json.loads((ROOT / "results" / "bench" / "recovery.json").read_text())["rows"]
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    for axis, (model, (title, *rest)) in zip(axes, PANELS.items(), strict=True):
        draw(axis, [row for row in rows if row["model"] == model], title, *rest)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "quality.png", dpi=110)
    print(folder / "quality.png", file=sys.stderr)


if __name__ == "__main__":
    main(ROOT / "docs" / "compress")
