"""Solving with circulant matrices: two FFTs."""

from __future__ import annotations

import torch

from ...core.rules import rule
from ...linalg.solvers import Candidate, formula
from . import Circulant


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
