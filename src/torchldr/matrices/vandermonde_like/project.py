"""Vandermonde-like: M - D M Z_0^T = G^T H exactly, so members are found by one SVD.

M is the recursion M_j = nodes o M_{j-1} + (G^T H)_j over its columns, in O(m n). For given H each row
of G is a small least-squares problem; for given G the best H is found by conjugate gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.rules import rule
from ...kernels.cpu.decay import decay
from ...project.climbing import State, climb, repeated
from ...project.methods import learn_nodes, solve, start_for
from ...project.pointwise import with_one_more
from ...project.problem import Problem, Tensors
from ...project.solving import conjugate_gradients, halves, leading, ridged
from ..ldr_td import LDRTridiagonal
from ..ldr_td.project import from_rings, ring
from . import VandermondeLike

_SWEEPS, _SWEEPS_LARGE, _TOLERANCE, _CG_STEPS = 30, 12, 1e-5, 15


def columns(nodes: Tensor, E: Tensor) -> Tensor:
    """X with X_j = nodes o X_{j-1} + E_j: (..., m, n), from E of that shape."""
    X = E.clone(memory_format=torch.contiguous_format)
    decay(nodes, X)
    return X


def columns_transposed(nodes: Tensor, Y: Tensor) -> Tensor:
    """The adjoint of `columns`: L_j = Y_j + nodes o L_{j+1}."""
    return columns(nodes, Y.flip(-1)).flip(-1)


@rule("project", VandermondeLike)
def project(problem: Problem, rank: int) -> Tensors:
    if problem.options["learn_nodes"]:
        return learn_nodes(problem, rank, ("nodes",))
    W, nodes = problem.W, problem.constants["nodes"]
    sweeps = problem.steps(_SWEEPS_LARGE if problem.large else _SWEEPS)
    triplets = torch.linalg.svd(_displacement(W, nodes), full_matrices=False)

    def state_of(G: Tensor, H: Tensor) -> State:
        return State({"G": G, "H": H}, problem.loss(columns(nodes, G.mT @ H)).item())

    def sweep(tensors: Tensors) -> State:
        G = _best_rows(problem, nodes, tensors["H"])
        return state_of(G, _better_columns(problem, nodes, G, tensors["H"]))

    def refined(G: Tensor, H: Tensor) -> State:
        return repeated(problem, state_of(G, H), sweep, sweeps, _TOLERANCE)

    def fresh(q: int) -> State:
        U, S, V = triplets
        return refined(*halves(U[:, :q], S[:q], V[:q]))

    def grown(state: State) -> State:
        G, H = state.tensors["G"], state.tensors["H"]
        rest = _displacement(W - columns(nodes, G.mT @ H), nodes)
        return refined(*with_one_more(G, H, halves(*leading(rest, 1, seed=problem.seed))[1]))

    return climb(problem, rank, fresh, grown).tensors


def _displacement(W: Tensor, nodes: Tensor) -> Tensor:
    """W - diag(nodes) W Z_0^T."""
    D = W.clone()
    D[:, 1:] -= nodes.unsqueeze(1) * W[:, :-1]
    return D


def _best_rows(problem: Problem, nodes: Tensor, H: Tensor) -> Tensor:
    """The best G for this H: r unknowns for each row."""
    rows = columns(nodes, H.unsqueeze(1).expand(-1, len(nodes), -1))  # (r, m, n)
    Phi = problem.weighted(rows)
    normal = torch.einsum("rmq,smq->mrs", Phi, Phi)
    right = torch.einsum("rmq,mq->mr", Phi, problem.target)
    return torch.linalg.solve(ridged(normal), right).mT


def _better_columns(problem: Problem, nodes: Tensor, G: Tensor, H: Tensor) -> Tensor:
    """A better H for this G: conjugate gradients from H, evened out over the r generators."""

    def adjoint(X: Tensor) -> Tensor:
        X = X if problem.moments is None else X @ problem.moments
        return G @ columns_transposed(nodes, X)

    length = H.shape[1]
    squares = 1 / (1 - nodes.square()).clamp(min=1 / length)  # of one entry's geometric series
    small = ridged((G * squares) @ G.mT)
    return conjugate_gradients(
        lambda x: adjoint(columns(nodes, G.mT @ x)),
        adjoint(problem.W),
        H,
        lambda y: torch.linalg.solve(small, y),
        _CG_STEPS,
    )


@start_for(LDRTridiagonal, VandermondeLike, place=3)
def in_ldr_td(problem: Problem, rank: int) -> Tensors:
    """Contained for n <= m; else a start all the same."""
    own = problem.for_class(VandermondeLike)
    found, nilpotent = solve(own, rank), torch.ones(problem.shape[1], dtype=torch.float64)
    nilpotent[0] = 0
    nodes = ring(diagonal=own.constants["nodes"])
    return from_rings(nodes, ring(lower=nilpotent), found["G"], found["H"])
