"""Pictures of the theory: a displacement, and the operators. They need no data and no training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchldr.operators import Shift, Subdiagonal, Tridiagonal
from torchldr.pictures import SIGNED, Picture, bare, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = 16
SMALL = 7


@styled
def displacement(n: int = SIZE) -> Picture:
    """A Toeplitz matrix M, two shifted copies Z_1 M and M Z_{-1}, and their difference, of rank two.

    Shifting M down and shifting it left agree everywhere but in the first row and the last column.
    """
    M = toeplitz(n)
    down, left = shift(n, 1.0) @ M, M @ shift(n, -1.0)
    difference = down - left
    rank = int(torch.linalg.matrix_rank(difference))
    panels = [
        (M, r"$M$", f"Toeplitz, rank {int(torch.linalg.matrix_rank(M))}"),
        (down, r"$Z_1 M$", "rows moved down"),
        (left, r"$M Z_{-1}$", "columns moved left"),
        (difference, r"$Z_1 M - M Z_{-1}$", f"displacement, rank {rank}"),
    ]
    figure, axes = new_figure(9.6, 2.9, 1, len(panels), gridspec_kw={"wspace": 0.12})
    limit = float(M.abs().max())
    for ax, (matrix, formula, words) in zip(axes[0], panels, strict=True):
        _matrix(ax, matrix, limit)
        ax.set_title(formula)
        ax.set_xlabel(words)
    for ax, sign in zip(axes[0][1:], ("", "\N{MINUS SIGN}", "="), strict=True):
        ax.text(
            -0.08, 0.5, sign, transform=ax.transAxes, ha="center", va="center", fontsize=15, in_layout=False
        )
    return Picture(
        "displacement",
        "Displacement of a Toeplitz matrix",
        f"Moving a Toeplitz matrix down a row or left a column gives the same entries, except at the border: "
        f"the difference has rank {rank} whatever the size (here {n} x {n}). "
        "Red is positive, blue negative, white zero.",
        figure,
    )


@styled
def operators(n: int = SMALL, seed: int = 0) -> Picture:
    """The shift Z_f, the subdiagonal and the tridiagonal operator, as in the paper's figure."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.rand(shape, generator=g, dtype=torch.float64) * 1.1 + 0.4

    corner, inner = (0, n - 1), range(n - 1)
    panels = [
        (
            shift(n, 0.6),
            r"Shift $Z_f$",
            "fixed: Toeplitz-like",
            {**{(i + 1, i): "1" for i in inner}, corner: "f"},
        ),
        (
            Subdiagonal(draw(n - 1), draw()).to_dense(),
            "Subdiagonal + corner",
            f"learned by LDR-SD: $n$ = {n} numbers",
            {**{(i + 1, i): f"$x_{i + 1}$" for i in inner}, corner: "$x_0$"},
        ),
        (
            Tridiagonal(draw(n - 1), -draw(n), draw(n - 1), -draw(2)).to_dense(),
            "Tridiagonal + corners",
            f"learned by LDR-TD: $3n$ = {3 * n} numbers",
            {(i, i): f"$b_{i}$" for i in range(n)}
            | {(i, i + 1): f"$a_{i}$" for i in inner}
            | {(i + 1, i): f"$c_{i}$" for i in inner}
            | {corner: "$s$", (n - 1, 0): "$t$"},
        ),
    ]
    figure, axes = new_figure(9.6, 3.8, 1, len(panels))
    for ax, (matrix, title, words, letters) in zip(axes[0], panels, strict=True):
        _matrix(ax, matrix, 2.2)
        ax.set_title(title)
        ax.set_xlabel(words)
        for (i, j), text in letters.items():
            ax.text(j, i, text, ha="center", va="center", fontsize=9)
    return Picture(
        "operators",
        "The three operators",
        "The displacement operators: the shift of Toeplitz-like matrices, and the two that are learned. "
        "White entries are zero and stay so; colours show one draw of the others.",
        figure,
    )


def shift(n: int, f: float) -> Tensor:
    """Z_f, shape (n, n)."""
    return Shift(n, f, dtype=torch.float64).to_dense()


def toeplitz(n: int) -> Tensor:
    """A Toeplitz matrix whose diagonals can be told apart, shape (n, n)."""
    t = torch.arange(1 - n, n, dtype=torch.float64)
    values = torch.cos(0.9 * t) * torch.exp(-t.abs() / n) + 0.35 * torch.sin(2.1 * t)
    i = torch.arange(n)
    return values[i[:, None] - i[None, :] + n - 1]


def _matrix(ax: Axes, M: Tensor, limit: float) -> None:
    ax.imshow(M.numpy(), cmap=SIGNED, vmin=-limit, vmax=limit, interpolation="nearest")
    bare(ax)
