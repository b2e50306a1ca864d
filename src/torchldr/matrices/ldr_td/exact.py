"""Exact representations: the same matrix as a member of LDR-TD, or of a class with fixed operators.

A low displacement rank does not by itself give a short Krylov form sum_i K_k(A, g_i) K_k(C, h_i)^T; these do:

    matrix                   as            A             C           rank
    low-rank r               LDR-TD        0             0           r
    Toeplitz                 LDR-TD        Z_0           Z_0         2
    Hankel                   LDR-TD        Z_0^T         Z_0         2
    circulant                LDR-TD        Z_1           Z_0         1
    Vandermonde, m x n       LDR-TD        diag(nodes)   Z_0         ceil(n / m)
    Toeplitz-like r          LDR-TD        Z_a           Z_{-a}      r
    Hankel-like r            LDR-TD        reversed Z_a  Z_{-a}      r
    LDR-SD r                 LDR-TD        its own       its own     r
    k x l circulant blocks   LDR-TD        Z_a           Z_{-a}      k + l, at most
    any matrix               Toeplitz-like Z_a           Z_{-a}      rank of M - Z_a M Z_{-a}^T

The last holds because M - A M C^T = R - A^k R (C^k)^T can be solved for R = G^T H: one of Z_a^k, Z_{-a}^k
is a multiple of the identity. For Toeplitz matrices that rank is 2, for circulant ones 1, for rank r 2 r.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...algebra.convert import convert
from ...core.linear_map import LinearMap
from ...core.matrix import StructuredMatrix
from ...core.rules import rule
from ..classical.convolution import Convolution2d
from ..classical.families import Hankel, Toeplitz
from ..ldr_sd import LDRSubdiagonal
from ..toeplitz_like import ToeplitzLike, corner_sign
from ..toeplitz_like.exact import cross, reversed_hankel
from . import LDRTridiagonal

Parts = dict[str, Tensor]


@rule("to_ldr_td", Toeplitz)
def _(M: Toeplitz, tol: float | None) -> LDRTridiagonal:
    check_real(M)
    # M - Z_0 M Z_0^T is the first column and row: what stands further in stands before, one up and left.
    G, H = cross(M.column, M.row)
    return tridiagonal(G, H, shift(G), shift(H))


@rule("to_ldr_td", Hankel)
def _(M: Hankel, tol: float | None) -> LDRTridiagonal:
    check_real(M)
    upside_down = convert(reversed_hankel(M), LDRTridiagonal)  # Z_0^T is Z_0 with rows and columns reversed
    up = shift(upside_down.G)
    up["superdiagonal"], up["subdiagonal"] = up["subdiagonal"], up["superdiagonal"]
    return tridiagonal(upside_down.G.flip(-1), upside_down.H, up, shift(upside_down.H))


@rule("to_ldr_td", Convolution2d)
def _(M: Convolution2d, tol: float | None) -> StructuredMatrix:
    return convert(convert(M, ToeplitzLike, tol=tol), LDRTridiagonal)


@rule("to_ldr_td", ToeplitzLike)
def _(M: ToeplitzLike, tol: float | None) -> LDRTridiagonal:
    a = float(corner_sign(*M.shape))
    return tridiagonal(M.G, M.H, shift(M.G, a), shift(M.H, -a))


@rule("to_ldr_td", LDRSubdiagonal)
def _(M: LDRSubdiagonal, tol: float | None) -> LDRTridiagonal:
    def side(name: str) -> Parts:
        s, corner = M.tensors[f"subdiagonal_{name}"], M.tensors[f"corner_{name}"]
        parts = diagonal(s.new_zeros(s.shape[0] + 1))
        parts["subdiagonal"] = s
        parts["corners"] = torch.stack((corner.reshape(()), s.new_zeros(())))
        return parts

    return tridiagonal(M.G, M.H, side("A"), side("C"))


def tridiagonal(G: Tensor, H: Tensor, A: Parts, C: Parts) -> LDRTridiagonal:
    sides = {f"{part}_{side}": t for side, parts in (("A", A), ("C", C)) for part, t in parts.items()}
    return LDRTridiagonal(G.shape[-1], H.shape[-1], G=G, H=H, **sides)


def with_zero_operators(W: Tensor) -> LDRTridiagonal:
    """Any matrix: operators 0, and the smaller side's unit vectors."""
    m, n = W.shape
    one = torch.eye(min(m, n), dtype=W.dtype, device=W.device)
    G, H = (one, W) if m <= n else (W.mT, one)
    return tridiagonal(G, H, diagonal(W.new_zeros(m)), diagonal(W.new_zeros(n)))


def diagonal(d: Tensor) -> Parts:
    zero = d.new_zeros(d.shape[-1] - 1)
    return {"subdiagonal": zero, "diagonal": d, "superdiagonal": zero.clone(), "corners": d.new_zeros(2)}


def shift(like: Tensor, f: float = 0.0) -> Parts:
    """Z_f of the size of the last axis."""
    parts = diagonal(like.new_zeros(like.shape[-1]))
    parts["subdiagonal"] = torch.ones_like(parts["subdiagonal"])
    parts["corners"] = like.new_tensor([f, 0.0])
    return parts


def check_real(M: LinearMap) -> None:
    if M.dtype.is_complex:
        raise TypeError(f"{type(M).__name__}: the classes of layers are real, got {M.dtype}.")
