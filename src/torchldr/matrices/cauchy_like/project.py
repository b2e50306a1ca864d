"""Projection onto Cauchy-like matrices: the displacement's SVD, then alternating least squares."""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.rules import rule
from ...functional.cauchy import cauchy_reference
from ...project.climbing import State, climb
from ...project.leading import halves, leading
from ...project.nodes import learn_nodes
from ...project.pointwise import Pointwise, with_one_more
from ...project.problem import Problem, Tensors
from . import CauchyLike

_SWEEPS, _TOLERANCE = 60, 1e-5


@rule("project", CauchyLike)
def project(problem: Problem, rank: int) -> Tensors:
    """M o (s_i - t_j) has rank r: the displacement of a Cauchy-like matrix in Sylvester's form."""
    if problem.options["learn_nodes"]:
        return learn_nodes(problem, rank, ("s", "t"))
    s, t = problem.constants["s"], problem.constants["t"]
    c = cauchy_reference(s, t)
    pointwise = Pointwise(problem.W, c, None if problem.root is None else problem.root.mT)
    triplets = torch.linalg.svd(problem.W / c, full_matrices=False)

    def refined(G: Tensor, H: Tensor) -> State:
        G, H, loss = pointwise.alternate(G, H, problem.steps(_SWEEPS), _TOLERANCE)
        return State({"G": G, "H": H}, loss)

    def fresh(q: int) -> State:
        U, S, V = triplets
        return refined(*halves(U[:, :q], S[:q], V[:q]))

    def grown(state: State) -> State:
        G, H = state.tensors["G"], state.tensors["H"]
        rest = (problem.W - c * (G.mT @ H)) / c
        return refined(*with_one_more(G, H, halves(*leading(rest, 1, seed=problem.seed))[1]))

    return climb(problem, rank, fresh, grown).tensors
