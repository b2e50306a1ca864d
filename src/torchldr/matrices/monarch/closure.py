"""Closure rules of Monarch matrices: sums of terms, the transpose, and diagonals from either side."""

from __future__ import annotations

from ...algebra.members import like, linear_in_generators
from ...core.rules import rule
from ...operators import Diagonal
from . import Monarch

linear_in_generators(Monarch)


@rule("transpose", Monarch)
def _(M: Monarch) -> Monarch:
    return Monarch.unchecked(M.in_features, M.out_features, {"G": M.H, "H": M.G}, M.options)


@rule("matmul", Diagonal, Monarch)
def _(D: Diagonal, M: Monarch) -> Monarch | None:
    if D.d.is_complex():
        return None
    return like(M, G=(M.G.unflatten(-1, (-1, M.out_features)) * D.d.to(M.dtype)).flatten(1))


@rule("matmul", Monarch, Diagonal)
def _(M: Monarch, D: Diagonal) -> Monarch | None:
    if D.d.is_complex():
        return None
    return like(M, H=(M.H.unflatten(-1, (-1, M.in_features)) * D.d.to(M.dtype)).flatten(1))
