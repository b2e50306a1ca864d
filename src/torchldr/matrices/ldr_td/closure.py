"""Closure rules of LDR-TD."""

from __future__ import annotations

import torch
from torch import Tensor

from ...algebra.members import like, linear_in_generators, sides_exchanged, telescoped
from ...algebra.structure import DisplacementStructure
from ...core.rules import rule
from ...operators import Diagonal, Operator, Tridiagonal
from ..ldr_sd.rules import scaled_operator
from . import LDRTridiagonal

linear_in_generators(LDRTridiagonal)
rule("transpose", LDRTridiagonal)(sides_exchanged)


@rule("matmul", Diagonal, LDRTridiagonal)
def _(D: Diagonal, M: LDRTridiagonal) -> LDRTridiagonal | None:
    return _scaled_side(M, D, "A")


@rule("matmul", LDRTridiagonal, Diagonal)
def _(M: LDRTridiagonal, D: Diagonal) -> LDRTridiagonal | None:
    return _scaled_side(M, D, "C")


def _scaled_side(M: LDRTridiagonal, D: Diagonal, side: str) -> LDRTridiagonal | None:
    """The generators of one side times D, and its operator between D and D^-1, which is tridiagonal too."""
    tensors = scaled_operator(M, D, side)
    if tensors is None:
        return None
    d = D.d.to(M.dtype)
    around = torch.stack((d[0] / d[-1], d[-1] / d[0]))
    tensors[f"superdiagonal_{side}"] = M.tensors[f"superdiagonal_{side}"] * d[:-1] / d[1:]
    tensors[f"corners_{side}"] = around * M.tensors[f"corners_{side}"]
    return like(M, **tensors)


@rule("displacement_structure", LDRTridiagonal)
def _(M: LDRTridiagonal) -> DisplacementStructure:
    """By A and C^T, of rank 2r."""

    def operator(lower: Tensor, diagonal: Tensor, upper: Tensor) -> Operator:
        return Tridiagonal(lower[1:], diagonal, upper[:-1], torch.stack((lower[0], upper[-1])))

    A, C, k = operator(*M._ring("A")), operator(*M._ring("C")), min(M.shape)
    return DisplacementStructure(A, C.T, "stein", 2 * M.G.shape[0], lambda: telescoped(A, C, M.G, M.H, k))
