"""Closure rules of Cauchy-like matrices."""

from __future__ import annotations

import torch

from ...algebra.members import linear_in_generators, member, scales_columns, scales_rows
from ...algebra.structure import DisplacementStructure
from ...core.linear_map import LinearMap
from ...core.rules import rule
from ...operators import Diagonal
from . import CauchyLike

linear_in_generators(CauchyLike)
scales_rows(CauchyLike, "G")
scales_columns(CauchyLike, "H")


@rule("transpose", CauchyLike)
def _(M: CauchyLike) -> CauchyLike:
    tensors = {"G": -M.H, "H": M.G, "s": M.t, "t": M.s}
    return CauchyLike.unchecked(M.in_features, M.out_features, tensors, M.options)


@rule("displacement_structure", CauchyLike)
def _(M: CauchyLike) -> DisplacementStructure:
    """diag(s) M - M diag(t), of rank r."""
    rank = M.G.shape[0]
    return DisplacementStructure(Diagonal(M.s), Diagonal(M.t), "sylvester", rank, lambda: (M.G, M.H))


@rule("member", CauchyLike)
def _(M: LinearMap, known: DisplacementStructure) -> CauchyLike | None:
    if not (isinstance(known.A, Diagonal) and isinstance(known.B, Diagonal) and known.form == "sylvester"):
        return None
    s, t = known.A.d, known.B.d
    if s.is_complex() or t.is_complex() or bool(torch.isin(s, t).any()):
        return None
    nodes = {"s": s.to(M.dtype), "t": t.to(M.dtype)}
    return member(CauchyLike, M, known.generators(), **nodes, learn_nodes=True)
