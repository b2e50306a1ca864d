"""Accuracy over flash: what a microcontroller of so many kilobytes can hold, by every method."""

from __future__ import annotations

from typing import Any

from torchldr.pictures import NothingToDrawError, Picture, look, new_figure, styled

from ..ledger.ledger import Ledger
from ..tables.flash import BUDGETS, METHODS, flash_rows
from ..tables.paper import get_table
from .names import dataset_title, method_title, model_title

Row = dict[str, Any]


@styled
def accuracy_against_flash(ledger: Ledger) -> Picture:
    """Test accuracy with int8 weights by kilobytes of flash, a panel for every dataset and network."""
    rows = [row for row in flash_rows(get_table("flash"), ledger) if row["test"] is not None]
    if not rows:
        raise NothingToDrawError("no run of the table flash is in the ledger: torchldr paper flash")
    panels: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        panels.setdefault((row["model"], row["dataset"]), []).append(row)
    columns = max(sum(model == other for other, _ in panels) for model, _ in panels)
    lines = list(dict.fromkeys(model for model, _ in panels))
    figure, grid = new_figure(3.0 * columns, 2.8 * len(lines) + 0.5, len(lines), columns)
    for axes, model in zip(grid, lines, strict=True):
        own = [key for key in panels if key[0] == model]
        for ax in axes[len(own) :]:
            ax.axis("off")
        for ax, key in zip(axes, own, strict=False):
            _panel(ax, panels[key])
            ax.set_title(f"{dataset_title(key[1])}, {model_title(model)}", fontsize=9)
        axes[0].set_ylabel("test accuracy, %")
    _legend(figure, {row["structure"] for row in rows})
    return Picture(
        "accuracy_flash",
        "Test accuracy against flash",
        "Test accuracy with int8 weights by the kilobytes of flash that these may take: at each budget the "
        "size of the method that validation chose, mean of three networks. Bars are a standard deviation.",
        figure,
        datasets=tuple(dict.fromkeys(dataset for _, dataset in panels)),
        models=tuple(lines),
        vector=True,
    )


def _panel(ax: Any, rows: list[Row]) -> None:
    for method in METHODS:
        own = [row for row in rows if row["structure"] == method]
        if not own:
            continue
        colour, marker = look(method)
        x, y = [row["kilobytes"] for row in own], [row["test"] for row in own]
        spread = [row["deviation"] for row in own]
        style = {"marker": marker, "markersize": 4.5, "linewidth": 1.2, "elinewidth": 0.8}
        ax.errorbar(x, y, yerr=spread, color=colour, **style)
    ax.set_xscale("log", base=2)
    ticks = [budget >> 10 for budget in BUDGETS]
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.set_xlabel("kilobytes of flash")
    ax.grid(True, axis="y")


def _legend(figure: Any, methods: set[str]) -> None:
    from matplotlib.lines import Line2D

    handles = []
    for method in (method for method in METHODS if method in methods):
        colour, marker = look(method)
        label = method_title(method)
        handles.append(Line2D([], [], color=colour, marker=marker, markersize=5, label=label))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 4), fontsize=8)
