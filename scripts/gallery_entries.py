"""What the gallery shows: the boxes of the diagram, and one entry for every class and transform."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

import torchldr
from torchldr.matrices import LinearMap

N = 32


class Region(NamedTuple):
    """A box of the diagram: place, colour, name and what members cost (storage, product)."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    title: str
    cost: str = ""


# Larger boxes first: what lies inside of another is contained in it.
WIDTH, HEIGHT = 100, 60
REGIONS = {
    "all": Region(0, 0, WIDTH, HEIGHT, "#ffffff", "all matrices", "n², n²"),
    "ldr_td": Region(2, 2, 96, 53, "#FBF3D9", "LDR-TD", "nr, nr log² n"),
    "ldr_sd": Region(4, 4, 53, 46, "#F3E3C3", "LDR-SD", "nr, nr log² n"),
    "toeplitz_like": Region(6, 15, 49, 30, "#D5E4EE", "Toeplitz-like", "nr, nr log n"),
    "toeplitz": Region(8, 17, 45, 23, "#B4D0E3", "Toeplitz", "n, n log n"),
    "circulant": Region(10, 19, 41, 16, "#8FBAD6", "circulant", "n, n log n"),
    "convolution": Region(12, 21, 37, 9, "#66A1C6", "convolution filters", "n, n log n"),
    "low_rank": Region(6, 6, 49, 7, "#F5D9B8", "low-rank", "nr, nr"),
    "hankel_like": Region(59, 42, 37, 8, "#E7D3E1", "Hankel-like", "nr, nr log n"),
    "vandermonde_like": Region(59, 32.5, 37, 8, "#D3E8DD", "Vandermonde-like", "nr, nr log² n"),
    "cauchy_like": Region(59, 23, 37, 8, "#DCE3C4", "Cauchy-like", "nr, nr log² n"),
    "polynomials": Region(59, 13.5, 37, 8, "#F6D6C6", "orthogonal polynomials", "n, n log² n"),
    "acdc": Region(59, 4, 37, 8, "#E3DCEF", "ACDC", "n, n log n"),
}


class Entry(NamedTuple):
    """One picture: file name, title, a sentence, its region and how to make it."""

    name: str
    title: str
    sentence: str
    region: str
    make: Callable[[], LinearMap]


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def smooth(seed: int, n: int) -> Tensor:
    """Random numbers that change slowly: neighbouring diagonals can be told apart by eye."""
    t = torch.arange(n, dtype=torch.float64)
    waves = [drawn(seed + k, 1) * torch.cos(t * (0.15 * k + 0.1) + k * seed) for k in range(1, 7)]
    return torch.stack(waves).sum(0)


def member(name: str, rank: int | None = None, seed: int = 1) -> LinearMap:
    cls = torchldr.get_structure(name)
    return cls.random(N, N, rank, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def spaced(low: float, high: float) -> Tensor:
    return torch.linspace(low, high, N, dtype=torch.float64)


ENTRIES = [
    Entry(
        "toeplitz",
        "Toeplitz",
        "Constant along diagonals: a shift of the input shifts the output.",
        "toeplitz",
        lambda: torchldr.Toeplitz(smooth(1, N), smooth(2, N)),
    ),
    Entry(
        "circulant",
        "Circulant",
        "Diagonals that come back on the other side.",
        "circulant",
        lambda: torchldr.Circulant.from_column(smooth(3, N)),
    ),
    Entry(
        "convolution1d",
        "Convolution filter",
        "Seven taps that slide over a signal.",
        "convolution",
        lambda: torchldr.matrices.classical.convolution1d(smooth(5, 7), N, "same"),
    ),
    Entry(
        "convolution2d",
        "Channels of 2-D filters",
        "3 x 3 filters from two channels to two, on flattened images of 4 x 4 pixels. What is not zero lies "
        "in one row and one column for each channel.",
        "toeplitz_like",
        lambda: torchldr.matrices.classical.Convolution2d(drawn(3, 2, 2, 3, 3), 4, 4, "flat"),
    ),
    Entry(
        "block_circulant",
        "Block-circulant",
        "A grid of 2 x 2 circulant blocks.",
        "toeplitz_like",
        lambda: torchldr.BlockCirculant.from_columns(
            torch.stack([smooth(k, 16) for k in range(4)]).view(2, 2, 16)
        ),
    ),
    Entry(
        "toeplitz_like",
        "Toeplitz-like, r = 2",
        "Sums of products of two circulant kinds.",
        "toeplitz_like",
        lambda: member("toeplitz_like", 2),
    ),
    Entry(
        "ldr_sd",
        "LDR-SD, r = 1",
        "Weighted shifts, learned: diagonals fade and swell.",
        "ldr_sd",
        lambda: member("ldr_sd", 1),
    ),
    Entry(
        "ldr_td",
        "LDR-TD, r = 1",
        "Tridiagonal operators, learned: moves that also spread.",
        "ldr_td",
        lambda: member("ldr_td", 1),
    ),
    Entry(
        "low_rank",
        "Low-rank, r = 2",
        "Two outer products. Displaced by I and 0 it is itself.",
        "low_rank",
        lambda: member("low_rank", 2),
    ),
    Entry(
        "hankel",
        "Hankel",
        "Constant along antidiagonals: a shift one way moves the output the other way.",
        "hankel_like",
        lambda: torchldr.matrices.classical.Hankel(smooth(7, N), smooth(8, N)),
    ),
    Entry(
        "hankel_like",
        "Hankel-like, r = 2",
        "A Toeplitz-like matrix with its rows reversed.",
        "hankel_like",
        lambda: member("hankel_like", 2),
    ),
    Entry(
        "vandermonde",
        "Vandermonde",
        "Powers of nodes: values of a polynomial from its coefficients.",
        "vandermonde_like",
        lambda: torchldr.matrices.classical.Vandermonde(torch.cos(spaced(0.05, 3.09))),
    ),
    Entry(
        "dft",
        "Fourier transform (real part)",
        "The Vandermonde matrix of the roots of unity; by Z_1 in place of Z_0 its displacement would be 0.",
        "vandermonde_like",
        lambda: torchldr.matrices.classical.DFT(N, orthonormal=True),
    ),
    Entry(
        "vandermonde_like",
        "Vandermonde-like, r = 2",
        "Polynomials of filtered coefficients.",
        "vandermonde_like",
        lambda: member("vandermonde_like", 2),
    ),
    Entry(
        "cauchy",
        "Cauchy",
        "Fields of charges, 1 / (s - t): the displacement is constant.",
        "cauchy_like",
        lambda: torchldr.matrices.classical.Cauchy(spaced(0, 1), spaced(1.15, 2)),
    ),
    Entry(
        "cauchy_like",
        "Cauchy-like, r = 2",
        "Charges among probes, with signs of their own.",
        "cauchy_like",
        lambda: member("cauchy_like", 2),
    ),
    Entry(
        "dct2",
        "Cosine transform (DCT-II)",
        "Chebyshev polynomials at the zeros of the next one, where the last row of the displacement "
        "vanishes too.",
        "polynomials",
        lambda: torchldr.matrices.classical.DCT2(N, orthonormal=True),
    ),
    Entry(
        "chebyshev",
        "Chebyshev transform",
        "Chebyshev polynomials at equally spaced nodes: only the last row is left.",
        "polynomials",
        lambda: torchldr.matrices.classical.Chebyshev(N, spaced(-1, 1)),
    ),
    Entry(
        "legendre",
        "Legendre transform",
        "Legendre polynomials at equally spaced nodes.",
        "polynomials",
        lambda: torchldr.matrices.classical.Legendre(N, spaced(-1, 1)),
    ),
    Entry(
        "acdc",
        "ACDC",
        "Diagonals behind and between cosine transforms. The paper's rules give rank 2; as the cosine "
        "transform's own displacement vanishes, so does this one.",
        "acdc",
        lambda: member("acdc"),
    ),
    Entry(
        "fastfood",
        "Fastfood",
        "Diagonals between Hadamard transforms: no operators are known for it.",
        "all",
        lambda: member("fastfood"),
    ),
    Entry(
        "monarch",
        "Monarch, r = 1",
        "A grid of 8 x 8 blocks of rank 1, in which rows and columns of blocks share nothing.",
        "all",
        lambda: member("monarch", 1),
    ),
    Entry(
        "kronecker",
        "Kronecker, r = 1",
        "One small matrix again and again, each time multiplied by an entry of another.",
        "all",
        lambda: member("kronecker", 1),
    ),
    Entry(
        "blast",
        "BLAST, r = 2",
        "A grid of 4 x 4 blocks; those of a row and of a column have the same bases, in other shares.",
        "all",
        lambda: member("blast", 2),
    ),
    Entry(
        "dense",
        "Dense",
        "No structure: displaced by shifts it keeps its full rank.",
        "all",
        lambda: member("dense"),
    ),
]
