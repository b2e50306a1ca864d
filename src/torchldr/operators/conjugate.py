"""Operators in other coordinates: D A D^-1 for a diagonal D."""

from __future__ import annotations

import torch

from .base import Operator, Power, TransposedOperator
from .blocks import BlockDiagonal
from .sparse import Diagonal, Shift, Subdiagonal, Tridiagonal


def conjugated(A: Operator, D: Diagonal) -> Operator | None:
    """D A D^-1 as an operator of the same kind; None where D has a zero or the kind is not known.

    A shift becomes a subdiagonal operator.
    """
    if bool((D.d == 0).any()):
        return None
    d = D.d
    if isinstance(A, Diagonal):
        return A
    if isinstance(A, Shift):
        return Subdiagonal(d[1:] / d[:-1], A.corner.to(d.dtype) * d[0] / d[-1])
    if isinstance(A, Subdiagonal):
        return Subdiagonal(A.s * d[1:] / d[:-1], A.corner * d[0] / d[-1])
    if isinstance(A, Tridiagonal):
        corners = A.corners * torch.stack((d[0] / d[-1], d[-1] / d[0]))
        return Tridiagonal(A.sub * d[1:] / d[:-1], A.diag, A.super * d[:-1] / d[1:], corners)
    if isinstance(A, TransposedOperator):  # D A^T D^-1 = (D^-1 A D)^T
        of = conjugated(A.of, Diagonal(1 / d))
        return None if of is None else of.T
    if isinstance(A, Power):
        of = conjugated(A.of, D)
        return None if of is None else of**A.p
    if isinstance(A, BlockDiagonal):
        blocks = [
            conjugated(block, Diagonal(part)) for block, part in zip(A.blocks, d.split(A.sizes), strict=True)
        ]
        return None if None in blocks else BlockDiagonal([block for block in blocks if block is not None])
    return None
