"""Projection onto low-rank matrices: one SVD."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from ...core.rules import rule
from ...project.methods import solve, start_for
from ...project.problem import Problem, Tensors
from ..blast import Blast
from ..ldr_sd import LDRSubdiagonal
from ..ldr_sd.project import from_edges, shift
from ..monarch import Monarch
from . import LowRank


@rule("project", LowRank)
def project(problem: Problem, rank: int) -> Tensors:
    """M = U U^T W with U the first left singular vectors of W R^T: optimal, and R need not be invertible."""
    U, _, _ = torch.linalg.svd(problem.target, full_matrices=False)
    U = U[:, :rank]
    if U.shape[1] < rank:  # fewer activations than the rank: further terms would be zero
        U = pad(U, (0, rank - U.shape[1]))
    return {"G": U.mT, "H": U.mT @ problem.W}


@start_for(LDRSubdiagonal, LowRank, place=2)
def in_ldr_sd(problem: Problem, rank: int) -> Tensors:
    """K(0, g) K(C, h)^T = g h^T for every C: a shift, so that A has a gradient."""
    (m, n), low = problem.shape, solve(problem.for_class(LowRank), rank)
    return from_edges(0 * shift(m)[0], shift(n)[0], low["G"], low["H"])


@start_for(Monarch, LowRank, place=1)
def in_monarch(problem: Problem, rank: int) -> Tensors:
    """Every block has the same g and h."""
    low = solve(problem.for_class(LowRank), rank)
    shapes = Monarch.parameter_shapes(*problem.shape, rank, **problem.options)
    return {name: t.repeat(1, shapes[name][1] // t.shape[1]) for name, t in low.items()}


@start_for(Blast, LowRank, place=1)
def in_blast(problem: Problem, rank: int) -> Tensors:
    """All couplings are 1."""
    low = solve(problem.for_class(LowRank), rank)
    shape = Blast.parameter_shapes(*problem.shape, rank, **problem.options)["S"]
    return {"G": low["G"], "S": torch.ones(shape, dtype=torch.float64), "H": low["H"]}
