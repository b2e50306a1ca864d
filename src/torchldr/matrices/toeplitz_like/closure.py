"""Closure rules of Toeplitz-like matrices."""

from __future__ import annotations

import torch

from ...algebra.members import krylov_generators, linear_in_generators, member, shift
from ...algebra.structure import DisplacementStructure, Generators
from ...core.linear_map import LinearMap
from ...core.rules import rule
from ...operators import Diagonal, Operator, same
from ..ldr_sd import LDRSubdiagonal
from . import ToeplitzLike, corner_sign

linear_in_generators(ToeplitzLike)


@rule("transpose", ToeplitzLike)
def _(M: ToeplitzLike) -> ToeplitzLike | None:
    m, n = M.shape
    if corner_sign(m, n) == corner_sign(n, m):  # the class of n x m has these operators the other way round
        return None
    return ToeplitzLike.unchecked(n, m, {"G": M.H, "H": M.G}, M.options)


# D K(A, g) = K(D A D^-1, D g): diagonally scaled Toeplitz-like matrices are LDR-SD.


@rule("matmul", Diagonal, ToeplitzLike)
def _(D: Diagonal, M: ToeplitzLike) -> LinearMap:
    return D @ in_ldr_sd(M)


@rule("matmul", ToeplitzLike, Diagonal)
def _(M: ToeplitzLike, D: Diagonal) -> LinearMap:
    return in_ldr_sd(M) @ D


def in_ldr_sd(M: ToeplitzLike) -> LDRSubdiagonal:
    """The same Toeplitz-like matrix in the class that learns its operators."""
    m, n = M.shape
    a = corner_sign(m, n)
    tensors = {"G": M.G, "H": M.H}
    for side, size, corner in (("A", m, a), ("C", n, -a)):
        tensors[f"subdiagonal_{side}"] = torch.ones(size - 1, dtype=M.dtype, device=M.device)
        tensors[f"corner_{side}"] = torch.tensor([float(corner)], dtype=M.dtype, device=M.device)
    return LDRSubdiagonal.unchecked(m, n, tensors, LDRSubdiagonal.check_options({}))


def displacement_generators(M: ToeplitzLike) -> Generators:
    """Of M - Z_a M Z_{-a}^T, for the Toeplitz-like matrix with these G and H."""
    m, n = M.shape
    a = corner_sign(m, n)
    if m <= n:  # Z_a^m = a
        return M.G, M.H - a * (shift(n, -a, M) ** m).matmul(M.H)
    return M.G + a * (shift(m, a, M) ** n).matmul(M.G), M.H


@rule("displacement_structure", ToeplitzLike)
def _(M: ToeplitzLike) -> DisplacementStructure:
    """By Z_a and Z_{-a}^T, of rank r."""
    return DisplacementStructure(*_operators(M), "stein", M.G.shape[0], lambda: displacement_generators(M))


@rule("fixed_operators", ToeplitzLike)
def _operators(M: LinearMap) -> tuple[Operator, Operator]:
    m, n = M.shape
    a = corner_sign(m, n)
    return shift(m, a, M), shift(n, -a, M).T


@rule("member", ToeplitzLike)
def _(M: LinearMap, known: DisplacementStructure) -> ToeplitzLike | None:
    A, B = _operators(M)
    if known.form != "stein" or not (same(known.A, A) and same(known.B, B)):
        return None
    found = krylov_generators(*known.generators(), A, B.T)
    return None if found is None else member(ToeplitzLike, M, found)
