"""Solving with Vandermonde-like matrices: elimination on generators of a Cauchy form."""

from __future__ import annotations

import torch

from ...core.rules import rule
from ...linalg.candidates import by_generators, real
from ...linalg.cauchy_forms import CauchyForm, gko, vandermonde_form
from ...linalg.solvers import Candidate
from . import VandermondeLike


@rule("solvers", VandermondeLike)
def _(M: VandermondeLike) -> list[Candidate]:
    def form() -> CauchyForm:
        last = torch.zeros(M.in_features, dtype=M.dtype, device=M.device)
        last[-1] = 1
        return vandermonde_form(M.nodes, M.G, M.H, M.matmul(last))

    return by_generators(M, 2 * M.G.shape[0] + 2, [real(gko("gko", form))])
