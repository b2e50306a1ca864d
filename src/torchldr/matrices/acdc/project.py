"""Projection onto ACDC: one diagonal at a time."""

from __future__ import annotations

import torch

from ...core.rules import rule
from ...functional.orthogonal import cosine_reference
from ...project.diagonals import Diagonals, best_of
from ...project.problem import Problem, Tensors
from . import ACDC


@rule("project", ACDC)
def project(problem: Problem, rank: int) -> Tensors:
    m, n = problem.shape
    C = cosine_reference(max(m, n))
    alternation = Diagonals(problem, C[:m], C.mT[:, :n], learn_B=False)
    B = torch.ones(n, dtype=torch.float64)
    starts = [alternation.inverse_start(B), torch.ones(m, dtype=torch.float64)]
    best = best_of(alternation, [(S, B) for S in starts])
    return {"A": best["S"] * best["B"][0], "D": best["D"]}
