"""Conjugate residuals on a Toeplitz matrix in C: `functional.toeplitz_residuals` has the steps."""

from __future__ import annotations

import torch
from torch import Tensor

from .library import Kernel
from .tables import tables

_solve = Kernel("ldr_conjugate_residuals", "pppppppp" + "iiii")


def conjugate_residuals(
    b: Tensor, target: Tensor, spectrum: Tensor, inverse: Tensor, steps: int
) -> Tensor | None:
    """Solve T x = b for rows of b (p, n); None as soon as a row will miss its target within these steps.

    Args:
        b: right-hand sides, shape (p, n), float64.
        target: the length of the residual to reach, shape (p,).
        spectrum, inverse: of T and of the preconditioner's inverse, conjugated, over N >= n, (2N,); real
            parts first.
        steps: the most of a row.
    """
    (p, n), N, done = b.shape, len(spectrum) // 2, torch.zeros(1, dtype=torch.int64)
    x, room = torch.empty_like(b), b.new_empty(6 * N + 2 * n * (steps + 1) + steps * (steps + 2))
    given = b, target, x, spectrum, inverse, tables(N, b.dtype), room, done
    _solve(b.dtype, *given, p, n, N, steps)
    return x if done else None
