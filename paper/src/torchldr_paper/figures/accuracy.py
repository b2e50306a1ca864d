"""Accuracy against rank, parameters and flash, from the ledger alone, the paper's values beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchldr.pictures import NothingToDrawError, Picture, look, new_figure, styled

from ..ledger.ledger import Ledger
from ..tables.cells import Cell, Table
from ..tables.flash import BUDGETS, METHODS, flash_rows
from ..tables.paper import SWEEPS, TABLES, get_table
from ..tables.rows import Row
from .names import dataset_title, method_title, model_title
from .series import about, by, finished, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


BAND = 2.0  # deviations on either side, as in the paper
DASHED = (0, (5, 3))

# The order in which methods are drawn and listed; others follow.
ORDER = (
    "dense", "ldr_sd", "ldr_td", "toeplitz_like", "hankel_like", "vandermonde_like", "low_rank", "circulant",
    "fastfood", "pruning", "rhu",
)  # fmt: skip


@styled
def accuracy_against_rank(ledger: Ledger) -> Picture:
    """The paper's figure: mean test accuracy of the trials by rank, with bands of two deviations."""
    figure, datasets = _accuracies(get_table("rank"), ledger, "rank", dashed="dense")
    return Picture(
        "accuracy_rank",
        "Test accuracy against rank",
        "Single hidden layer. Mean over the trials of the learning rate that validation chose; bands are two "
        "standard deviations of a trial on either side. The unstructured layer has no rank: a dashed line. "
        "Hollow marks are the paper's values, where it states them.",
        figure,
        datasets=datasets,
        models=("shl",),
        vector=True,
    )


@styled
def accuracy_against_parameters(ledger: Ledger, model: str = "shl") -> Picture:
    """Test accuracy by number of parameters, every method, a panel a dataset; `model` is "shl" or "cnn"."""
    figure, datasets = _accuracies(_all_budgets(model), ledger, "parameters")
    return Picture(
        f"accuracy_parameters_{model}",
        f"Test accuracy against parameters, {model_title(model)}",
        f"Parameters of the two last layers of the {model_title(model)}. Filled marks are ours, the mean "
        "over seeds; hollow marks are the paper's values.",
        figure,
        datasets=datasets,
        models=(model,),
        vector=True,
    )


def _accuracies(table: Table, ledger: Ledger, key: str, dashed: str = "") -> tuple[Figure, tuple[str, ...]]:
    """A panel a dataset, a line a method, by a number of their rows; the method `dashed` is a level."""
    found, quick = finished(table, ledger)
    panels = by(found, "dataset")
    figure, axes = _panels(len(panels))
    for ax, (dataset, group) in zip(axes, panels.items(), strict=True):
        for method, line in by(group, "structure").items():
            _line(ax, method, sorted(line, key=lambda row: row[key] or 0), key)
        if key == "rank":
            ax.set_xticks(sorted({row[key] for row in group if row[key] is not None}))
        else:
            ax.set_xscale("log")
        ax.set_xlabel(key)
        ax.set_title(f"{dataset_title(dataset)}\n({about(group, quick)})")
        ax.margins(x=0.06)
    present = {row["structure"] for row in found}
    methods = [*(m for m in ORDER if m in present), *sorted(present.difference(ORDER))]
    _legend(figure, methods, 6, dashed, hollow=any(row["paper"] is not None for row in found))
    return figure, tuple(panels)


def _all_budgets(model: str) -> Table:
    """Every cell that compares test accuracies of this network on all the data, but for sweeps of starts."""
    cells: dict[str, Cell] = {}
    for cell in (cell for table in TABLES.values() if table.name not in SWEEPS for cell in table.cells):
        run = cell.run
        # Not the lower levels of noise, at which only three methods are run.
        main = not run.data.startswith("mnist_noise_") or run.data == "mnist_noise_6"
        if (cell.metric, run.model, run.train_fraction) == ("test", model, 1) and main:
            cells.setdefault(run.hash, cell)
    return Table(
        "rectangles" if model == "shl" else model, "Accuracy against parameters", tuple(cells.values())
    )


def _line(ax: Axes, method: str, line: Sequence[Row], key: str) -> None:
    """A method's values, by rank with bands; one without a rank is a level. Hollow marks are the paper's."""
    colour, marker = look(method)
    x, values = [row[key] for row in line], [row["test"] for row in line]
    low, high = ([row["test"] + side * BAND * spread(row["records"]) for row in line] for side in (-1, 1))
    if x[0] is None:
        ax.axhspan(low[0], high[0], color=colour, alpha=0.12, linewidth=0)
        ax.axhline(values[0], color=colour, linestyle=DASHED, linewidth=1.2)
        return
    if key == "rank":
        ax.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
        ax.plot(x, values, color=colour, marker=marker, markersize=4.5, linewidth=1.6)
    else:
        ax.plot(x, values, color=colour, marker=marker, markersize=5, linewidth=1, alpha=0.9)
    stated = [(row[key], row["paper"]) for row in line if row["paper"] is not None]
    if stated:
        at, paper = zip(*stated, strict=True)
        ax.scatter(
            at, paper, marker=marker, s=38, facecolors="none", edgecolors=colour, linewidths=0.9, zorder=3
        )


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    """Axes for so many panels, two or three in a row, the others switched off."""
    columns = min(count, 3 if count != 4 else 2)
    rows = -(-count // columns)
    width = 4.6 if columns == 1 else 3.2 * columns if columns == 3 else 4.3 * columns
    figure, grid = new_figure(width, 3.0 * rows + 0.5, rows, columns)
    axes: list[Any] = list(grid.flat)
    for ax in axes[count:]:
        ax.axis("off")
    for ax in axes[:count]:
        ax.grid(True, axis="y")
    for row in grid:
        row[0].set_ylabel("test accuracy, %")
    return figure, axes[:count]


def _legend(
    figure: Figure, methods: Sequence[str], columns: int, dashed: str = "", hollow: bool = False
) -> None:
    """One legend for all panels, below them; the method `dashed` is drawn as a level."""
    from matplotlib.lines import Line2D

    handles = []
    for method in methods:
        colour, marker = look(method)
        style: dict[str, Any] = {"linestyle": DASHED} if method == dashed else {"marker": marker}
        handles.append(Line2D([], [], color=colour, markersize=5, label=method_title(method), **style))
    if hollow:
        style = {"marker": "o", "markersize": 6, "markerfacecolor": "none", "color": "#555555"}
        handles.append(Line2D([], [], linestyle="none", label="hollow: the paper", **style))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), columns), fontsize=8)


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
    present = {row["structure"] for row in rows}
    _legend(figure, [method for method in METHODS if method in present], 4)
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
