"""The paper's figure: speed-up over dense against n, both logarithmic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchldr.pictures import NothingToDrawError, Picture, look, new_figure, styled

from .paper_values import SIZES, acceleration

_DASHES = ("-", "--", "-.", ":", (0, (1, 1)))


@styled
def speedup_picture(rows: Sequence[Mapping[str, Any]]) -> Picture:
    """Speed-up against n, a panel for each of inference and training and each batch.

    Hollow marks are the paper's values, extrapolated dense times have no mark.

    Raises:
        NothingToDrawError: without rows.
        ImportError: without matplotlib.
    """
    if not rows:
        raise NothingToDrawError("nothing was measured: there is no speed-up to draw.")
    panels = sorted({(row["what"], row["batch"]) for row in rows})
    ranks = sorted({row["rank"] for row in rows if row["rank"] is not None})
    figure, axes = new_figure(4.2 * len(panels), 3.6, 1, len(panels), sharey=True)
    for ax, (what, batch) in zip(axes[0], panels, strict=True):
        group = [row for row in rows if (row["what"], row["batch"]) == (what, batch)]
        for structure, rank in dict.fromkeys((row["structure"], row["rank"]) for row in group):
            line = [row for row in group if (row["structure"], row["rank"]) == (structure, rank)]
            style = look(structure)
            dash = _DASHES[ranks.index(rank) % len(_DASHES)] if rank in ranks else "-"
            name = structure if rank is None else f"{structure}, r = {rank}"
            sizes, ratios = [row["n"] for row in line], [row["ratio"] for row in line]
            measured = [i for i, row in enumerate(line) if not row["extrapolated"]]
            ax.plot(sizes, ratios, color=style.colour, marker=style.marker, markevery=measured,
                    linestyle=dash, label=name)  # fmt: skip
            if (what, batch) == ("inference", 1) and acceleration(structure, SIZES[0], rank) is not None:
                theirs = [acceleration(structure, n, rank) for n in SIZES]
                ax.plot(SIZES, [float("nan") if t is None else t for t in theirs], color=style.colour,
                        marker=style.marker, markerfacecolor="white", linewidth=0.5)  # fmt: skip
        ax.axhline(1, color="#555555", linewidth=0.8)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xlabel("n")
        ax.set_title(f"{what}, batch {batch}")
        ax.grid(True)
        ax.legend(fontsize=7)
    axes[0][0].set_ylabel("speed-up over dense")
    caption = "Dense time over our time. Hollow marks are the paper's values."
    return Picture("speedup", "Speed-up over dense", caption, figure, vector=True)


def save_plot(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw the picture to a file, .png or .svg by its name."""
    content = speedup_picture(rows).encode(file.suffix.removeprefix(".").lower())
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
