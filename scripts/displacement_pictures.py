"""Draw the pictures of docs/displacement.md, from the library itself: docs/displacement/NAME.png.

python scripts/displacement_pictures.py [FOLDER]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

import torchldr
from torchldr.algebra import displacement
from torchldr.operators import Shift
from torchldr.pictures import SIGNED, Picture, bare, new_figure, styled

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "displacement"
N = 24
Panel = tuple[Tensor, str, str]


def toeplitz(n: int = N) -> Tensor:
    """A Toeplitz matrix whose diagonals can be told apart, shape (n, n)."""
    t = torch.arange(n, dtype=torch.float64)
    column = torch.cos(0.7 * t) * torch.exp(-t / n)
    row = torch.cos(0.45 * t) * torch.exp(-2 * t / n)
    return torchldr.Toeplitz(column, row).to_dense()


def rank(M: Tensor) -> int:
    return int(torch.linalg.matrix_rank(M, rtol=1e-9))


def moved(M: Tensor) -> Tensor:
    """Z_0 M Z_0^T: one place down and one to the right."""
    Z = Shift(len(M), dtype=torch.float64).to_dense()
    return Z @ M @ Z.mT


def row(name: str, panels: Iterable[Panel], signs: Iterable[str] = (), limit: float | None = None) -> Picture:
    """Matrices beside each other, with a sign before each but the first."""
    shown = list(panels)
    figure, axes = new_figure(2.4 * len(shown), 2.75, 1, len(shown), gridspec_kw={"wspace": 0.14})
    for ax, (M, title, words) in zip(axes[0], shown, strict=True):
        top = limit or float(M.abs().quantile(0.99)) or 1.0
        ax.imshow(M.numpy(), cmap=SIGNED, vmin=-top, vmax=top, interpolation="nearest")
        bare(ax)
        ax.set_title(title)
        ax.set_xlabel(words)
    for ax, sign in zip(axes[0][1:], signs, strict=False):
        ax.text(-0.09, 0.5, sign, transform=ax.transAxes, ha="center", va="center", fontsize=15)
    return Picture(name, name, "", figure)


@styled
def shifted() -> Picture:
    T = toeplitz()
    D = T - moved(T)
    return row(
        "toeplitz",
        [
            (T, "$T$", f"Toeplitz, rank {rank(T)}"),
            (moved(T), "$Z\\,T\\,Z^T$", "one down, one right"),
            (D, "$T - Z\\,T\\,Z^T$", f"displacement, rank {rank(D)}"),
        ],
        ("\N{MINUS SIGN}", "="),
        limit=float(T.abs().max()),
    )


@styled
def inverse() -> Picture:
    """An inverse looks like nothing, and its displacement has the same rank."""
    generator = torch.Generator().manual_seed(3)
    column, first = torch.randn(2, N, dtype=torch.float64, generator=generator)
    first[0] = column[0] = 3.0
    W = torch.linalg.inv(torchldr.Toeplitz(column, first).to_dense())
    D = W - moved(W)
    noise = torch.randn(N, N, dtype=torch.float64, generator=generator)
    E = noise - moved(noise)
    return row(
        "inverse",
        [
            (W, "$T^{-1}$", "an inverse"),
            (D, "its displacement", f"rank {rank(D)}"),
            (noise, "noise", "a random matrix"),
            (E, "its displacement", f"rank {rank(E)}"),
        ],
    )


@styled
def learned() -> Picture:
    """A matrix that shifts do not explain, and the operators that do."""
    t, zero = torch.linspace(0, 1, N, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    a, c = 0.92 + 0.16 * torch.sin(9 * t[1:]), 1.06 - 0.13 * t[1:]
    g = (torch.exp(-60 * (t - 0.1) ** 2) - 0.7 * torch.exp(-60 * (t - 0.35) ** 2)).unsqueeze(0)
    h = torch.cos(7 * t).unsqueeze(0)
    M = torchldr.LDRSubdiagonal(
        N, N, G=g, H=h, subdiagonal_A=a, corner_A=zero, subdiagonal_C=c, corner_C=zero
    )
    Z = Shift(N, dtype=torch.float64)
    W, A, own = M.to_dense(), M.operators()[0], M.displacement()
    by_shifts = displacement(W, Z, Z.T)
    return row(
        "learned",
        [
            (W, "$M$", "LDR-SD, 4 vectors"),
            (by_shifts, "by shifts", f"rank {rank(by_shifts)}"),
            (A, "$A$", "the learned operator"),
            (own, "by its own operators", f"rank {rank(own)}"),
        ],
    )


@styled
def rebuilt() -> Picture:
    """The displacement of a Toeplitz matrix, moved along the diagonals and added up."""
    T = toeplitz()
    D = T - moved(T)
    sums, term = [D], D
    for _ in range(1, N):
        term = moved(term)
        sums.append(sums[-1] + term)
    panels = [
        (sums[0], "1 term", "the displacement"),
        (sums[1], "2 terms", "moved once and added"),
        (sums[5], "6 terms", "five times"),
        (sums[-1], f"{N} terms", "$T$ again"),
    ]
    return row("rebuilt", panels, limit=float(T.abs().max()))


def main(folder: Path = FOLDER) -> list[Path]:
    return [path for draw in (shifted, inverse, learned, rebuilt) for path in draw().save(folder, ["png"])]


if __name__ == "__main__":
    for path in main(*map(Path, sys.argv[1:2])):
        print(path)
