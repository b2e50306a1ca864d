"""Solving with Hankel-like matrices: as Toeplitz-like ones, with their rows reversed."""

from __future__ import annotations

from ...core.rules import rule
from ...linalg.candidates import by_generators, rows_reversed, toeplitz_candidates
from ...linalg.solvers import Candidate
from . import HankelLike


@rule("solvers", HankelLike)
def _(M: HankelLike) -> list[Candidate]:
    return by_generators(M, 2 * M.G.shape[0], rows_reversed(toeplitz_candidates(lambda: (2 * M.G, M.H))))
