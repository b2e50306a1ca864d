"""Closure rules of low-rank matrices, which stay so in every product."""

from __future__ import annotations

import torch

from ...algebra.known import KnownDisplacement, Operators
from ...algebra.members import linear_in_generators, member, scales_columns, scales_rows
from ...algebra.multiply import multiply, rmultiply
from ...algebra.structure import DisplacementStructure, Form, Generators
from ...core.linear_map import LinearMap
from ...core.rules import rule
from ...operators import Diagonal, Operator
from . import LowRank

linear_in_generators(LowRank)
scales_rows(LowRank, "G")
scales_columns(LowRank, "H")


@rule("transpose", LowRank)
def _(M: LowRank) -> LowRank:
    return LowRank.unchecked(M.in_features, M.out_features, {"G": M.H, "H": M.G}, M.options)


@rule("matmul", LowRank, LinearMap)
def _(M: LowRank, N: LinearMap) -> LowRank | None:
    if N.dtype.is_complex or M.G.shape[0] > min(M.out_features, N.in_features):
        return None
    return LowRank.unchecked(M.out_features, N.in_features, {"G": M.G, "H": rmultiply(N, M.H)}, M.options)


@rule("matmul", LinearMap, LowRank)
def _(M: LinearMap, N: LowRank) -> LowRank | None:
    if M.dtype.is_complex or N.G.shape[0] > min(M.out_features, N.in_features):
        return None
    return LowRank.unchecked(M.out_features, N.in_features, {"G": multiply(M, N.G), "H": N.H}, N.options)


@rule("matmul", LowRank, LowRank)
def _(M: LowRank, N: LowRank) -> LowRank | None:
    """The smaller rank stays."""
    left = M.G.shape[0] <= N.G.shape[0]
    first, second = (M, N) if left else (N, M)
    if first.G.shape[0] > min(M.out_features, N.in_features) or first.dtype != second.dtype:
        return None
    tensors = {"G": M.G, "H": N.rmatmul(M.H)} if left else {"G": M.matmul(N.G), "H": N.H}
    return LowRank.unchecked(M.out_features, N.in_features, tensors, M.options)


@rule("displacement_structure", LowRank)
def _(M: LowRank) -> DisplacementStructure:
    """By (0, 0), of rank r."""
    A, B = (Diagonal(torch.zeros(size, dtype=M.dtype, device=M.device)) for size in M.shape)
    return DisplacementStructure(A, B, "stein", M.G.shape[0], lambda: (M.G, M.H))


@rule("displaced", LowRank)
def _(
    M: LowRank, own: DisplacementStructure | None, A: Operator, B: Operator, form: Form
) -> DisplacementStructure:
    """By any operators: G^T H - (A G^T)(H B), or (A G^T) H - G^T (H B)."""
    if form == "stein" and _is_zero(A) and own is not None:
        return DisplacementStructure(A, B, form, own.rank, own.make)

    def make() -> Generators:
        G, H, AG, HB = M.G, M.H, A.matmul(M.G), B.rmatmul(M.H)
        if form == "stein":
            return torch.cat((G, -AG)), torch.cat((H, HB))
        return torch.cat((AG, -G)), torch.cat((H, HB))

    return DisplacementStructure(A, B, form, 2 * M.G.shape[0], make)


def _is_zero(A: Operator) -> bool:
    return not bool(A.entries().values.any())


@rule("member", LowRank)
def _(M: LinearMap, known: DisplacementStructure) -> LowRank | None:
    zero = _is_zero(known.A) or _is_zero(known.B)
    return member(LowRank, M, known.generators()) if known.form == "stein" and zero else None


@rule("known_displacement", LowRank)
def _(M: LowRank) -> KnownDisplacement:
    m, n = M.shape
    identity = Diagonal(torch.ones(m, dtype=M.dtype, device=M.device))
    nothing = Diagonal(torch.zeros(n, dtype=M.dtype, device=M.device))
    return KnownDisplacement(Operators(identity, nothing), M.G.shape[0])
