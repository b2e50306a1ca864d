"""Toeplitz systems by conjugate residuals, in O(n log n) a step: `functional.toeplitz_residuals`.

For a smooth symbol about thirty steps reach the level of rounding, whatever n is. If they will not, the
residual shows it after eight steps, and elimination takes over. The result counts only for well-conditioned
matrices, as estimated from two random systems.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..functional import toeplitz_residuals
from .solvers import Candidate, Solver

FROM = 192  # features: below, elimination is as fast
PLAIN_FROM, CUDA_FROM = 1024, 2048  # the same without the compiled loop, on a CPU and a GPU
LARGEST = 1 << 17  # numbers in the right-hand sides: the iteration keeps a hundred times as many
STEPS = 48
PROBED = 0.05  # the residual of a random system with unit entries: enough to see its largest components
ROUNDING = torch.finfo(torch.float64).eps


class ResidualIteration(Solver):
    """Conjugate residuals on a real Toeplitz matrix, given its first column and row."""

    trusted = 1e6
    accepted = 64 * ROUNDING

    def __init__(self, column: Tensor, row: Tensor) -> None:
        self.form = toeplitz_residuals.form(column, row)

    def solve(self, b: Tensor, *, transposed: bool = False) -> Tensor:
        return self.solve_with(b, b[:0], transposed=transposed)

    def solve_with(self, b: Tensor, probes: Tensor, *, transposed: bool = False) -> Tensor:
        enough = 8 * ROUNDING * torch.linalg.vector_norm(b, dim=-1)
        rows, target = torch.cat((b, probes)), torch.cat((enough, probes.new_full((len(probes),), PROBED)))
        x = self.form.solve(rows, target, STEPS, transposed=transposed)
        return torch.full_like(rows, math.nan) if x is None else x


def residual_iteration(column: Tensor, row: Tensor) -> list[Candidate]:
    """The iteration for a real Toeplitz matrix in float64, if it is the fastest method."""
    compiled = toeplitz_residuals.compiles(column, row)
    if len(column) < (FROM if compiled else CUDA_FROM if column.is_cuda else PLAIN_FROM):
        return []
    return [Candidate("conjugate residuals", lambda: ResidualIteration(column, row), largest=LARGEST)]
