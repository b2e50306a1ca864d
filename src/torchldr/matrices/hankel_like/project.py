"""Projection onto Hankel-like matrices: as Toeplitz-like ones, with the rows reversed."""

from __future__ import annotations

import torch

from ...core.rules import rule
from ...project.methods import solve, start_for
from ...project.problem import Problem, Tensors
from ..ldr_td import LDRTridiagonal
from ..ldr_td.project import from_rings, ring
from ..toeplitz_like import corner_sign
from ..toeplitz_like.project import project_matrix
from . import HankelLike


@rule("project", HankelLike)
def project(problem: Problem, rank: int) -> Tensors:
    return project_matrix(problem, problem.W.flip(0), rank)


@start_for(LDRTridiagonal, HankelLike, place=2)
def in_ldr_td(problem: Problem, rank: int) -> Tensors:
    """Reversing the rows turns Z_a upside down: J K(Z_a, g) = K(J Z_a J, J g)."""
    (m, n), a = problem.shape, corner_sign(*problem.shape)
    found = solve(problem.for_class(HankelLike), rank)
    up, down = torch.ones(m, dtype=torch.float64), torch.ones(n, dtype=torch.float64)
    up[-1], down[0] = a, -a
    return from_rings(ring(upper=up), ring(lower=down), found["G"].flip(1), found["H"])
