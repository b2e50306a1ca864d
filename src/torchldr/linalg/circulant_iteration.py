"""Toeplitz systems by an iteration with a circulant preconditioner, in O(n log n) a step.

T. Chan's circulant matrix C is the nearest to T in the Frobenius norm: each of its diagonals is the mean of
two of T's. Where T has a smooth symbol without zeros, most singular values of T C^-1 lie near 1, and some
thirty steps come to the level of rounding whatever n is. Where they do not, the residual tells after eight
steps, and elimination takes over.

It is believed for well-conditioned matrices alone, as told by two random systems that are solved along.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..functional.fft import fast_length
from ..functional.gcr import gcr
from .solvers import Candidate, Solver

FROM = 1024  # features: below, elimination is as fast
LARGEST = 1 << 17  # numbers in the right-hand sides: the iteration keeps a hundred times as many
STEPS = 48
PROBED = 0.05  # what is left of a random system with unit entries: enough to see its largest components
ROUNDING = torch.finfo(torch.float64).eps


class CirculantIteration(Solver):
    """Conjugate residuals on T, real and Toeplitz, preconditioned by a circulant matrix."""

    trusted = 1e6
    accepted = 64 * ROUNDING

    def __init__(self, column: Tensor, row: Tensor) -> None:
        n = column.shape[-1]
        above = row[1:].flip(0)
        self.length = fast_length(2 * n - 1)
        middle = column.new_zeros(self.length - 2 * n + 1)
        self.spectrum = torch.fft.rfft(torch.cat((column, middle, above)))
        share = torch.arange(n, device=column.device, dtype=column.dtype) / n
        mean = (1 - share) * column
        mean[1:] += share[1:] * above
        self.mean = torch.fft.rfft(mean)

    def solve(self, b: Tensor, *, transposed: bool = False) -> Tensor:
        return self.solve_with(b, b[:0], transposed=transposed)

    def solve_with(self, b: Tensor, probes: Tensor, *, transposed: bool = False) -> Tensor:
        enough = 8 * ROUNDING * torch.linalg.vector_norm(b, dim=-1)
        target = torch.cat((enough, probes.new_full((len(probes),), PROBED)))
        rows = torch.cat((b, probes))
        size = self.mean.abs()
        if float(size.min()) * self.trusted > float(size.max()):
            n, length = rows.shape[-1], self.length
            spectrum, inverse = self.spectrum, 1 / self.mean
            if transposed:
                spectrum, inverse = spectrum.conj(), inverse.conj()
            product = lambda x: torch.fft.irfft(torch.fft.rfft(x, length) * spectrum, length)[..., :n]
            precondition = lambda r: torch.fft.irfft(torch.fft.rfft(r) * inverse, n)
            x = gcr(product, precondition, rows, target, most=STEPS)
            if x is not None:
                return x
        return torch.full_like(rows, math.nan)


def circulant_iteration(column: Tensor, row: Tensor) -> Candidate:
    """The iteration for a real Toeplitz matrix, given its first column and row."""
    return Candidate("circulant iteration", lambda: CirculantIteration(column, row), largest=LARGEST)
