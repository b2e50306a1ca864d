"""Solving with Cauchy-like matrices: elimination on their generators."""

from __future__ import annotations

from ...core.rules import rule
from ...linalg.candidates import by_generators
from ...linalg.cauchy_forms import CauchyForm, gko
from ...linalg.solvers import Candidate
from . import CauchyLike


@rule("solvers", CauchyLike)
def _(M: CauchyLike) -> list[Candidate]:
    form = gko("gko", lambda: CauchyForm(M.s, M.t, M.G, M.H))
    return by_generators(M, M.G.shape[0], [form])
