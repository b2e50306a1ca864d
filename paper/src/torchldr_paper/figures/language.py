"""Language models from the ledger: perplexity against parameters, and validation perplexity by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchldr.pictures import Picture, look, new_figure, styled

from ..ledger.ledger import Ledger
from ..ledger.records import Record
from ..tables.paper import get_table
from ..tables.rows import Row
from .accuracy import DASHED
from .names import method_title
from .series import about, by, finished

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@styled
def perplexity_against_parameters(ledger: Ledger) -> Picture:
    """Test perplexity by parameters of the four input matrices, the paper's values beside ours."""
    found, quick = finished(get_table("lstm"), ledger)
    figure, axes = new_figure(6.0, 4.0, 1, 1)
    ax: Axes = axes[0][0]
    for method, line in by(found, "structure").items():
        colour, marker = look(method)
        ordered = sorted(line, key=lambda row: row["parameters"])
        counts = [row["parameters"] for row in ordered]
        if method == "dense":
            ax.axhline(
                ordered[0]["test"], color=colour, linestyle=DASHED, linewidth=1.2, label="Unstructured"
            )
            continue
        values, stated = [row["test"] for row in ordered], [row["paper"] for row in ordered]
        ax.plot(counts, values, color=colour, marker=marker, markersize=5, label=method_title(method))
        ax.plot(counts, stated, color=colour, marker=marker, markerfacecolor="none", linewidth=0.8,
                linestyle=(0, (1, 2)))  # fmt: skip
    ax.set_xscale("log")
    ax.set_xlabel("parameters of the four input matrices")
    ax.set_ylabel("test perplexity")
    ax.set_title(f"WikiText-2 ({about(found, quick)})")
    ax.grid(True, axis="y")
    ax.legend(fontsize=8)
    return Picture(
        "perplexity_parameters",
        "Test perplexity against parameters, LSTM",
        "One LSTM layer of 128 units whose input matrices are structured; less is better. Filled marks are "
        "ours, hollow ones on dotted lines the paper's, which states 117.74 for the unstructured layer of "
        "65,536 parameters (ours: dashed).",
        figure,
        datasets=("wikitext2",),
        models=("lstm",),
        vector=True,
    )


@styled
def validation_curves(ledger: Ledger) -> Picture:
    """Validation perplexity by epoch, a panel a class, a line a rank."""
    from matplotlib.ticker import LogLocator, NullLocator

    found, quick = finished(get_table("lstm"), ledger)
    groups = by(found, "structure")
    dense = groups.pop("dense", [])
    panels = groups or {"dense": dense}
    figure, axes = new_figure(3.4 * len(panels), 3.6, 1, len(panels), sharey=True)
    for ax, (method, line) in zip(axes[0], panels.items(), strict=True):
        ordered = sorted(line, key=lambda row: row["rank"] or 0)
        for place, row in enumerate(ordered):
            shade = 0.35 + 0.65 * (place + 1) / len(ordered)
            label = f"r = {row['rank']}" if row["rank"] else "Unstructured"
            _curve(ax, row["records"][0], look(method).colour, shade, label)
        if method != "dense" and dense:
            _curve(ax, dense[0]["records"][0], look("dense").colour, 0.8, "Unstructured")
        ax.set_title(f"{method_title(method)}\n({about(line, quick)})")
        ax.set_xlabel("epoch")
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 6)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_locator(NullLocator())
        ax.grid(True, axis="y")
        ax.legend(fontsize=7)
    axes[0][0].set_ylabel("validation perplexity")
    _limits(axes[0], found)
    return Picture(
        "perplexity_curves",
        "Validation perplexity by epoch, LSTM",
        "Each model's own validation perplexity; its learning rate falls by four after an epoch that brought "
        "no better one. The darker a line, the higher the rank.",
        figure,
        datasets=("wikitext2",),
        models=("lstm",),
        vector=True,
    )


def _curve(ax: Axes, record: Record, colour: str, shade: float, label: str) -> None:
    values = [row[0] for row in record.result["metrics"]["validation"]]
    told = [(epoch, value) for epoch, value in enumerate(values, 1) if value is not None]
    if told:
        x, y = zip(*told, strict=True)
        ax.plot(x, y, color=colour, alpha=shade, linewidth=1.3, label=label)


def _limits(axes: Sequence[Axes], found: Sequence[Row]) -> None:
    """Leave the first epochs' large values above the frame."""
    records: list[Record] = [record for row in found for record in row["records"]]
    last = [record.result["metrics"]["validation"][-1][0] for record in records]
    best = [record.best.validation for record in records if record.best is not None]
    ends = [value for value in last if value is not None]
    if best and ends:
        axes[0].set_ylim(0.95 * min(best), 1.8 * max(*ends, *best))
