"""Solving with one Kronecker product: with each factor."""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.rules import rule
from ...linalg.solvers import Candidate, formula
from . import Kronecker


@rule("solvers", Kronecker)
def _(M: Kronecker) -> list[Candidate] | None:
    a, b, c, d = M.sizes
    if M.G.shape[0] > 1 or (a, b) != (c, d) or a * b != M.in_features:
        return None  # sums and cropped products have no inverse of this form

    def solve(y: Tensor, A: Tensor, B: Tensor) -> Tensor:
        z = _solved(A, y.unflatten(-1, (a, b)))
        return _solved(B, z.mT).mT.flatten(-2)

    return [formula("factors", lambda y: solve(y, M.A[0], M.B[0]), lambda y: solve(y, M.A[0].mT, M.B[0].mT))]


def _solved(A: Tensor, y: Tensor) -> Tensor:
    """A^-1 Y for matrices Y (p, n, k), not finite where A is singular."""
    factors, pivots, _ = torch.linalg.lu_factor_ex(A)
    return torch.linalg.lu_solve(factors, pivots, y)
