"""Classes whose inverse is a formula: rules for `solver_rules`.

circulant, ACDC            FFTs: the inverse is of the same form
Fastfood, n a power of 2   Hadamard transforms, likewise
block-circulant            FFTs, then one small dense system a frequency, where b divides n
low-rank                   singular, but for r = n
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.rules import rule
from ...functional.orthogonal import cosine_transform, hadamard_transform, inverse_cosine_transform
from ..acdc import ACDC
from ..block_circulant import BlockCirculant
from ..circulant import Circulant
from ..dense import Dense
from ..fastfood import Fastfood
from ..low_rank import LowRank
from .solvers import Candidate, dense, formula


@rule("solvers", Circulant)
def _(M: Circulant) -> list[Candidate]:
    spectrum = torch.fft.rfft(M.column)
    n = M.in_features
    by_fft = formula(
        "fft",
        lambda b: torch.fft.irfft(torch.fft.rfft(b) / spectrum, n),
        lambda b: torch.fft.irfft(torch.fft.rfft(b) / spectrum.conj(), n),
    )
    return [by_fft]


@rule("solvers", BlockCirculant)
def _(M: BlockCirculant) -> list[Candidate] | None:
    size = M.column.shape[-1]
    if M.in_features % size:
        return None  # cropped blocks are no longer circulant
    spectra = torch.fft.rfft(M.column).permute(2, 0, 1)  # (f, k, k)

    def solve(b: Tensor, spectra: Tensor) -> Tensor:
        blocks = torch.fft.rfft(b.unflatten(-1, (-1, size))).permute(2, 1, 0)  # (f, k, p)
        factors, pivots, _ = torch.linalg.lu_factor_ex(spectra)
        x = torch.linalg.lu_solve(factors, pivots, blocks).permute(2, 1, 0)
        return torch.fft.irfft(x, size).flatten(-2)

    return [formula("fft", lambda b: solve(b, spectra), lambda b: solve(b, spectra.mH))]


@rule("solvers", ACDC)
def _(M: ACDC) -> list[Candidate]:
    def through(b: Tensor) -> Tensor:
        return cosine_transform(inverse_cosine_transform(b) / M.D)

    return [formula("cosine transform", lambda b: through(b / M.A), lambda b: through(b) / M.A)]


@rule("solvers", Fastfood)
def _(M: Fastfood) -> list[Candidate] | None:
    n = M.in_features
    if n & (n - 1):
        return None  # cropped transforms are no longer orthogonal
    back = M.permutation.argsort()
    return [
        formula(
            "hadamard transform",
            lambda b: hadamard_transform((hadamard_transform(b / M.S) / M.D)[..., back]) / M.B,
            lambda b: hadamard_transform(hadamard_transform(b / M.B)[..., M.permutation] / M.D) / M.S,
        )
    ]


@rule("solvers", LowRank)
def _(M: LowRank) -> list[Candidate]:
    if M.G.shape[0] < M.in_features:  # of rank r, so singular whatever G and H are
        nothing = lambda b: torch.full_like(b, torch.nan)
        return [formula("none: singular", nothing, nothing)]
    return [dense(M)]


@rule("solvers", Dense)
def _(M: Dense) -> list[Candidate]:
    return [dense(M)]
