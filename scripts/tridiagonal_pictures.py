"""Draw the picture of docs/tridiagonal.md, blocks with two ports and the tree of joins: ports.png.

python scripts/tridiagonal_pictures.py
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "tridiagonal" / "ports.png"
BLUE, RED, GREY = "#2b6cb0", "#c53030", "#718096"


def ports() -> Figure:
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for block in range(4):
        left = block * 4.4
        axes.add_patch(
            FancyBboxPatch(
                (left, 0), 3.6, 1.1, boxstyle="round,pad=0.08", facecolor="#ebf4ff", edgecolor=BLUE
            )
        )
        for cell in range(6):
            port = cell in (0, 5)
            axes.plot(left + 0.3 + 0.6 * cell, 0.5, "o", color=BLUE if port else "#bee3f8", markersize=9)
        axes.text(left + 0.3, 0.85, "L", ha="center", fontsize=8, color=BLUE)
        axes.text(left + 3.3, 0.85, "R", ha="center", fontsize=8, color=BLUE)
        axes.text(left + 1.8, -0.5, f"block {block}", ha="center", fontsize=8)
        if block < 3:
            _arrow(axes, (left + 3.45, 0.62), (left + 4.55, 0.62), RED, 0.35)
            _arrow(axes, (left + 4.55, 0.38), (left + 3.45, 0.38), GREY, 0.35)
            axes.text(left + 4.0, 1.02, "z s", ha="center", fontsize=8, color=RED)
            axes.text(left + 4.0, -0.12, "z p", ha="center", fontsize=8, color=GREY)
    for left, right, height in ((0, 8.0, 2.2), (8.8, 16.8, 2.2), (0, 16.8, 3.4)):
        axes.add_patch(
            FancyBboxPatch(
                (left, height),
                right - left,
                0.5,
                boxstyle="round,pad=0.08",
                facecolor="#f7fafc",
                edgecolor=BLUE,
            )
        )
        axes.plot([left + 0.2, right - 0.2], [height + 0.25] * 2, "o", color=BLUE, markersize=7)
    text = "2m cells, two ports, series of 2cm coefficients"
    axes.text(4.0, 2.45, text, ha="center", va="center", fontsize=8)
    axes.text(12.8, 2.45, text, ha="center", va="center", fontsize=8)
    axes.text(
        8.4, 3.65, "the whole line; the corners close it to a ring", ha="center", va="center", fontsize=8
    )
    for low, high, up in ((1.8, 4.0, 2.1), (6.2, 4.0, 2.1), (10.6, 12.8, 2.1), (15.0, 12.8, 2.1)):
        axes.plot([low, high], [1.25, up], color=GREY, lw=0.8)
    for low in (4.0, 12.8):
        axes.plot([low, 8.4], [2.8, 3.3], color=GREY, lw=0.8)
    axes.set_xlim(-0.5, 17.3)
    axes.set_ylim(-0.9, 4.2)
    axes.axis("off")
    return figure


def _arrow(
    axes: Axes, tail: tuple[float, float], head: tuple[float, float], colour: str, bend: float
) -> None:
    style = {"arrowstyle": "->", "color": colour, "lw": 1.4, "connectionstyle": f"arc3,rad={-bend}"}
    axes.annotate("", xy=head, xytext=tail, arrowprops=style)


if __name__ == "__main__":
    ports().savefig(PICTURE, dpi=110, metadata={"Software": None})  # the same bytes from every version
    print(PICTURE.relative_to(ROOT))
