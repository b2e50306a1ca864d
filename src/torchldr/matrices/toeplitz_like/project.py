"""Projection onto Toeplitz-like matrices: the displacement's SVD, then alternating least squares."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...core.rules import rule
from ...project.climbing import State, climb
from ...project.methods import solve, start_for
from ...project.pointwise import Pointwise, with_one_more
from ...project.problem import Problem, Tensors
from ...project.solving import halves, leading
from ..ldr_sd import LDRSubdiagonal
from ..ldr_sd import project as ldr_sd
from . import ToeplitzLike, corner_sign
from .rules import krylov_form, shift_displacement

_SWEEPS, _TOLERANCE = 60, 1e-5


@rule("project", ToeplitzLike)
def project(problem: Problem, rank: int) -> Tensors:
    return project_matrix(problem, problem.W, rank)


def project_matrix(problem: Problem, W: Tensor, rank: int) -> Tensors:
    """The generators of a Toeplitz-like matrix near W, which is that of the problem or the same reversed."""
    (m, n), a = problem.shape, corner_sign(*problem.shape)
    U, V, c = _shift_bases(m, n, a)
    root = None if problem.root is None else V.conj() @ problem.root.mT.to(V.dtype)
    pointwise = Pointwise(U @ W.to(U.dtype) @ V.mT, c, root)

    def transform(G: Tensor, H: Tensor) -> tuple[Tensor, Tensor]:
        return math.sqrt(m) * G.to(U.dtype) @ U.mT, math.sqrt(n) * H.to(V.dtype) @ V.mT

    def back(g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return (g @ U.conj()).real / math.sqrt(m), (h @ V.conj()).real / math.sqrt(n)

    def refined(G: Tensor, H: Tensor) -> State:
        g, h, loss = pointwise.alternate(*transform(G, H), problem.steps(_SWEEPS), _TOLERANCE)
        G, H = back(g, h)
        return State({"G": G, "H": H}, loss)

    def grown(state: State) -> State:
        G, H = state.tensors["G"], state.tensors["H"]
        g, h = transform(G, H)
        M = (U.mH @ (c * (g.mT @ h)) @ V.conj()).real
        _, more = krylov_form(*halves(*leading(shift_displacement(W - M), 1, seed=problem.seed)))
        return refined(*with_one_more(G, H, more))

    U_D, S_D, V_D = torch.linalg.svd(shift_displacement(W), full_matrices=False)

    def fresh(q: int) -> State:
        return refined(*krylov_form(*halves(U_D[:, :q], S_D[:q], V_D[:q])))

    return climb(problem, rank, fresh, grown).tensors


@start_for(LDRSubdiagonal, ToeplitzLike, place=1)
def in_ldr_sd(problem: Problem, rank: int) -> Tensors:
    (m, n), a = problem.shape, corner_sign(*problem.shape)
    found = solve(problem.for_class(ToeplitzLike), rank)
    return ldr_sd.from_edges(ldr_sd.shift(m, a)[0], ldr_sd.shift(n, -a)[0], found["G"], found["H"])


def _shift_bases(m: int, n: int, a: int) -> tuple[Tensor, Tensor, Tensor]:
    """U, V and c of `pointwise` for the operators Z_a and Z_{-a}."""
    k = min(m, n)
    left, right = _root_powers(m, m, a), _root_powers(n, n, -a)
    c = _root_powers(m, k, a) @ _root_powers(n, k, -a).mT
    return left / math.sqrt(m), right / math.sqrt(n), c / math.sqrt(m * n)


def _root_powers(m: int, k: int, a: int) -> Tensor:
    """lambda_i^p for the roots lambda_i^m = a and p < k, angles reduced as integers: exact for every m."""
    i, p = torch.arange(m).unsqueeze(1), torch.arange(k)
    turns = (2 * i + (a < 0)) * p % (2 * m)
    angle = turns.to(torch.float64) * (math.pi / m)
    return torch.polar(torch.ones_like(angle), angle)
