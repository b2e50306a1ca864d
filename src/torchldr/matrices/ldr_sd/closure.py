"""Closure rules of LDR-SD.

D K(A, g) = K(D A D^-1, D g), and D A D^-1 is subdiagonal as A is: diagonals go into the operators.
"""

from __future__ import annotations

from torch import Tensor

from ...algebra.members import (
    as_subdiagonal,
    krylov_generators,
    like,
    linear_in_generators,
    member,
    sides_exchanged,
)
from ...algebra.structure import DisplacementStructure, Generators
from ...core.linear_map import LinearMap
from ...core.matrix import StructuredMatrix
from ...core.rules import rule
from ...operators import Diagonal, Subdiagonal
from . import LDRSubdiagonal

linear_in_generators(LDRSubdiagonal)
rule("transpose", LDRSubdiagonal)(sides_exchanged)


@rule("matmul", Diagonal, LDRSubdiagonal)
def _(D: Diagonal, M: LDRSubdiagonal) -> LDRSubdiagonal | None:
    return _scaled_side(M, D, "A")


@rule("matmul", LDRSubdiagonal, Diagonal)
def _(M: LDRSubdiagonal, D: Diagonal) -> LDRSubdiagonal | None:
    return _scaled_side(M, D, "C")


def _scaled_side(M: LDRSubdiagonal, D: Diagonal, side: str) -> LDRSubdiagonal | None:
    parts = scaled_operator(M, D, side)
    if parts is None:
        return None
    d = D.d.to(M.dtype)
    return like(M, **parts, **{f"corner_{side}": M.tensors[f"corner_{side}"] * d[0] / d[-1]})


def scaled_operator(M: StructuredMatrix, D: Diagonal, side: str) -> dict[str, Tensor] | None:
    """The generators of one side times D, and the subdiagonal of its operator between D and D^-1."""
    if D.d.is_complex() or M.options.get("normalize") or bool((D.d == 0).any()):
        return None
    d, name = D.d.to(M.dtype), "G" if side == "A" else "H"
    below = f"subdiagonal_{side}"
    return {name: d * M.tensors[name], below: d[1:] / d[:-1] * M.tensors[below]}


@rule("displacement_structure", LDRSubdiagonal)
def _(M: LDRSubdiagonal) -> DisplacementStructure:
    """By A and C^T, of rank r: the power of the shorter operator is a multiple of the identity."""
    m, n = M.shape
    A, C = Subdiagonal(M.subdiagonal_A, M.corner_A), Subdiagonal(M.subdiagonal_C, M.corner_C)

    def make() -> Generators:
        if m <= n:
            around = A.corner * M.subdiagonal_A.prod()
            return M.G, M.H - around * (C**m).matmul(M.H)
        around = C.corner * M.subdiagonal_C.prod()
        return M.G - around * (A**n).matmul(M.G), M.H

    return DisplacementStructure(A, C.T, "stein", M.G.shape[0], make)


@rule("member", LDRSubdiagonal)
def _(M: LinearMap, known: DisplacementStructure) -> LDRSubdiagonal | None:
    A, C = as_subdiagonal(known.A), as_subdiagonal(known.B.T)
    if known.form != "stein" or A is None or C is None or A.dtype.is_complex or C.dtype.is_complex:
        return None
    found = krylov_generators(*known.generators(), A, C)
    if found is None:
        return None
    sides = {
        f"{part}_{side}": t.to(M.dtype)
        for side, X in (("A", A), ("C", C))
        for part, t in (("subdiagonal", X.s), ("corner", X.corner.reshape(1)))
    }
    return member(LDRSubdiagonal, M, found, **sides)
