"""The picture of an analysis: residual against size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...pictures import Style, look, new_figure

FORMATS = (".png", ".svg", ".pdf")
COLUMNS = 3


def check_picture(path: Path) -> None:
    """Raise for a name of no picture, and where none can be drawn."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"a picture's name must end in {', '.join(FORMATS)}, got {str(path)!r}.")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError("pictures need matplotlib; pip install matplotlib") from None


def save_plot(weights: Sequence[Any], path: Path) -> None:
    """Draw residual against the share of the parameters, a panel for each `WeightAnalysis`.

    Filled marks are full projections or exact, hollow ones quick looks; rings are the best for a fraction.
    """
    check_picture(path)
    trials = [t.structure for weight in weights for t in weight.trials]
    names = sorted({structure.name for structure in trials if not structure.is_dense})
    looks = {name: look(name) for name in names}
    columns = min(COLUMNS, len(weights))
    rows = math.ceil(len(weights) / columns)
    figure, axes = new_figure(4.4 * columns, 3.4 * rows + 0.6, rows, columns, sharex=True, sharey=True)
    for ax, weight in zip(axes.flat, weights, strict=False):
        _panel(ax, weight, looks)
    for ax in axes.flat[len(weights) :]:
        ax.set_axis_off()
    handles = [
        figure.axes[0].plot([], [], color=colour, marker=marker, markersize=4, label=name)[0]
        for name, (colour, marker) in looks.items()
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(6, len(handles)), fontsize=8)
    figure.supxlabel("parameters, as a share of the dense weight's", fontsize=9)
    figure.supylabel("residual", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _panel(ax: Any, weight: Any, looks: dict[str, Style]) -> None:
    for name, (colour, marker) in looks.items():
        trials = [t for t in weight.trials if t.structure.name == name]
        sizes = [t.parameters / weight.parameters for t in trials]
        ax.plot(sizes, [t.residual for t in trials], color=colour, linewidth=0.8)
        for refined in (False, True):
            some = [t for t in trials if t.refined == refined]
            ax.plot([t.parameters / weight.parameters for t in some], [t.residual for t in some],
                    color=colour, marker=marker, markersize=3.5, linestyle="",
                    markerfacecolor=colour if refined else "white")  # fmt: skip
    for best in filter(None, weight.best):
        ax.plot([best.parameters / weight.parameters], [best.residual], marker="o", markersize=9,
                markerfacecolor="none", markeredgecolor="black", linestyle="")  # fmt: skip
    ax.set_xscale("log")
    ax.set_ylim(-0.03, 1.05)
    ax.grid(True, linewidth=0.3)
    ax.set_title(f"{weight.name}, {weight.shape[0]} x {weight.shape[1]}", fontsize=9)
