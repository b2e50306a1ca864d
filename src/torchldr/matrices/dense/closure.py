"""Closure rules of unstructured matrices."""

from __future__ import annotations

from torch import Tensor

from ...algebra.members import like, linear_in_its_tensor, scales_columns
from ...core.rules import rule
from ...operators import Diagonal
from . import Dense

linear_in_its_tensor(Dense)
scales_columns(Dense, "weight")


@rule("linear_map", Tensor)
def _(W: Tensor) -> Dense:
    """A tensor where a linear map is wanted."""
    return Dense(W.shape[0], W.shape[1], weight=W)


@rule("transpose", Dense)
def _(M: Dense) -> Dense:
    return Dense.unchecked(M.in_features, M.out_features, {"weight": M.weight.mT}, M.options)


@rule("matmul", Dense, Dense)
def _(M: Dense, N: Dense) -> Dense | None:
    if M.dtype != N.dtype:
        return None
    return Dense.unchecked(M.out_features, N.in_features, {"weight": M.weight @ N.weight}, M.options)


@rule("matmul", Diagonal, Dense)
def _(D: Diagonal, M: Dense) -> Dense | None:
    return None if D.d.is_complex() else like(M, weight=D.d.unsqueeze(-1).to(M.dtype) * M.weight)
