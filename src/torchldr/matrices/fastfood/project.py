"""Projection onto Fastfood: one diagonal at a time, from several draws of signs."""

from __future__ import annotations

import torch

from ...core.rules import rule
from ...functional.orthogonal import hadamard_reference
from ...project.diagonals import Diagonals, best_of
from ...project.problem import Problem, Tensors
from . import Fastfood


@rule("project", Fastfood)
def project(problem: Problem, rank: int) -> Tensors:
    m, n = problem.shape
    size = max(m, n)
    Had = hadamard_reference(1 << (size - 1).bit_length())
    R = Had[:size, :n][problem.constants["permutation"]]
    alternation = Diagonals(problem, Had[:m, :size], R, learn_B=True)
    signs = [torch.ones(n, dtype=torch.float64)]
    for start in range(2 if problem.large else 6):
        drawn = torch.randint(0, 2, (n,), generator=problem.generator(start))
        signs.append(2.0 * drawn.to(torch.float64) - 1)
    ones = torch.ones(m, dtype=torch.float64)
    pairs = [(ones, B) for B in signs] + [(alternation.inverse_start(B), B) for B in signs[:2]]
    return best_of(alternation, pairs)
