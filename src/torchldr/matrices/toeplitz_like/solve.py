"""Solving with Toeplitz-like matrices: elimination on generators of a Cauchy form."""

from __future__ import annotations

from ...core.rules import rule
from ...linalg.candidates import by_generators, toeplitz_candidates
from ...linalg.solvers import Candidate
from . import ToeplitzLike


@rule("solvers", ToeplitzLike)
def _(M: ToeplitzLike) -> list[Candidate]:
    # Z_1^n = I and Z_{-1}^n = -I: the displacement is twice G^T H.
    return by_generators(M, 2 * M.G.shape[0], toeplitz_candidates(lambda: (2 * M.G, M.H)))
