"""Solving with block-circulant matrices: FFTs, then one small dense system a frequency."""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.rules import rule
from ...linalg.solvers import Candidate, formula
from . import BlockCirculant


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
