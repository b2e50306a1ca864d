"""The picture of a layer's operators: weight, displacement, singular values, entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..pictures import SIGNED, bare, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Of the palette of Okabe and Ito, which people with a colour deficiency can tell apart.
COLOURS = {"subdiagonal": "#0072B2", "diagonal": "#D55E00", "superdiagonal": "#009E73"}
WEIGHT, RESIDUAL = "#888888", "#D55E00"


@styled
def draw(found: Any) -> Figure:
    """Two rows: the weight, its displacement and both spectra; then the entries of A and of C."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 5.4), layout="constrained")
    grid: Any = figure.add_gridspec(2, 6, height_ratios=(3, 2))
    panels = [figure.add_subplot(grid[0, 2 * i : 2 * i + 2]) for i in range(3)]
    limit = float(found.matrix.abs().flatten().quantile(0.99)) or 1.0
    heat_map(panels[0], found.matrix, limit, r"weight $M$")
    heat_map(panels[1], found.displacement, limit, r"displacement $M - A M C^T$")
    panels[0].set_xlabel(f"{found.structure}, {found.matrix.shape[0]} x {found.matrix.shape[1]}", fontsize=8)
    panels[1].set_xlabel(
        f"equivariance error {found.error:.3f} (plain shifts {found.shift_error:.3f})", fontsize=8
    )
    spectra(panels[2], {r"$M$": (found.matrix, WEIGHT), r"$M - A M C^T$": (found.displacement, RESIDUAL)})
    panels[2].axvline(found.rank, color=RESIDUAL, linewidth=0.8, linestyle=":")
    panels[2].set_title("singular values", fontsize=9)
    for side, place, what in (("A", grid[1, :3], "output"), ("C", grid[1, 3:], "input")):
        axes = figure.add_subplot(place)
        operator_entries(axes, found.entries(side))
        axes.set_title(f"operator ${side}$, of the {what}", fontsize=9)
    return figure


def heat_map(axes: Axes, M: Tensor, limit: float, title: str = "") -> None:
    """A matrix from blue to red through white, larger entries than `limit` saturated."""
    axes.imshow(
        M.cpu().numpy(), cmap=SIGNED, vmin=-limit, vmax=limit, interpolation="nearest", aspect="equal"
    )
    axes.set_title(title, fontsize=9)
    bare(axes)


def spectra(axes: Axes, matrices: dict[str, tuple[Tensor, str]]) -> None:
    """Singular values on a logarithmic axis, those at rounding level left out."""
    largest = 0.0
    for label, (M, colour) in matrices.items():
        values = torch.linalg.svdvals(M).cpu()
        largest = max(largest, float(values[0]))
        shown = values[values > 1e-13 * largest]
        line: dict[str, Any] = {"color": colour, "markersize": 4, "linewidth": 0.8, "label": label}
        axes.plot(range(1, len(shown) + 1), shown.numpy(), ".-", **line)
    axes.set_yscale("log")
    axes.legend(fontsize=8)


def operator_entries(axes: Axes, entries: dict[str, Tensor]) -> None:
    """The diagonals of an operator as lines over the position; corners are named in the legend."""
    for name, colour in COLOURS.items():
        if name in entries:
            axes.plot(entries[name].cpu().numpy(), color=colour, linewidth=0.9, label=name)
    if "corners" in entries:
        top, bottom = entries["corners"].tolist()
        axes.plot([], [], " ", label=f"corners {top:.3g}, {bottom:.3g}")
    axes.margins(x=0.01)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, ncols=2)
