"""Toeplitz-like, Hankel-like and Cauchy-like: the displacement's SVD, then alternating least squares."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...functional.cauchy import cauchy_reference
from ..cauchy_like import CauchyLike
from ..hankel_like import HankelLike
from ..toeplitz_like import ToeplitzLike, corner_sign
from .climbing import State, climb
from .leading import halves, leading
from .nodes import learn_nodes
from .pointwise import Pointwise
from .problem import Problem, Tensors
from .registry import projects

_SWEEPS, _TOLERANCE = 60, 1e-5


@projects(ToeplitzLike, HankelLike)
def project_toeplitz_like(problem: Problem, rank: int) -> Tensors:
    """Hankel-like matrices are Toeplitz-like with their rows reversed."""
    W = problem.W.flip(0) if issubclass(problem.cls, HankelLike) else problem.W
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
        _, more = _generators(W - M, a, 1, problem.seed)
        return refined(*_padded(G, H, more))

    D = _shift_displacement(W, a)
    U_D, S_D, V_D = torch.linalg.svd(D, full_matrices=False)

    def fresh(q: int) -> State:
        return refined(*_from_displacement(m, n, a, *halves(U_D[:, :q], S_D[:q], V_D[:q])))

    return climb(problem, rank, fresh, grown).tensors


@projects(CauchyLike)
def project_cauchy_like(problem: Problem, rank: int) -> Tensors:
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
        return refined(*_padded(G, H, halves(*leading(rest, 1, seed=problem.seed))[1]))

    return climb(problem, rank, fresh, grown).tensors


def _padded(G: Tensor, H: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
    """One rank more with a direction for H and nothing in G: the same matrix, free to move."""
    return torch.cat((G, torch.zeros_like(G[:1]))), torch.cat((H, more))


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


def _shift_displacement(W: Tensor, a: int) -> Tensor:
    """W - Z_a W Z_{-a}^T."""
    moved = W.roll((1, 1), (0, 1))
    moved[0] *= a
    moved[:, 0] *= -a
    return W - moved


def _from_displacement(m: int, n: int, a: int, G: Tensor, H: Tensor) -> tuple[Tensor, Tensor]:
    """The generators of the matrix whose displacement is G^T H.

    That of K(Z_a, g) K(Z_{-a}, h)^T is g h^T - Z_a^k g (Z_{-a}^k h)^T, and the power on the shorter side
    is a multiple of the identity: a for m <= n, else -a.
    """
    if m <= n:
        return G, _undo(H, m, -a, a)
    return _undo(G, n, a, -a), H


def _undo(H: Tensor, k: int, corner: int, factor: int) -> Tensor:
    """Solve (I - factor Z_corner^k) x = h for every row h of H, in the basis of the shift."""
    n = H.shape[1]
    roots = _root_powers(n, n, corner)
    values = 1 - factor * _root_powers(n, k + 1, corner)[:, -1]
    return ((H.to(roots.dtype) @ roots.mT / values) @ roots.conj()).real / n


def _generators(W: Tensor, a: int, rank: int, seed: int) -> tuple[Tensor, Tensor]:
    m, n = W.shape
    return _from_displacement(m, n, a, *halves(*leading(_shift_displacement(W, a), rank, seed=seed)))
