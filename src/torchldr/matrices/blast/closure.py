"""Closure rules of BLAST matrices: sums, transposes, and diagonals from either side."""

from __future__ import annotations

import torch

from ...algebra.members import like, scales_columns, scales_rows
from ...core.rules import rule
from . import Blast

scales_rows(Blast, "G")
scales_columns(Blast, "H")


@rule("transpose", Blast)
def _(M: Blast) -> Blast:
    tensors = {"G": M.H, "S": M.S.mT, "H": M.G}
    return Blast.unchecked(M.in_features, M.out_features, tensors, M.options)


@rule("add", Blast, Blast)
def _(M: Blast, N: Blast) -> Blast | None:
    """Terms go under each other."""
    same = M.options == N.options and M.dtype == N.dtype and M.device == N.device
    if not same or M.G.shape[0] + N.G.shape[0] > min(M.shape):
        return None
    return like(M, **{name: torch.cat((M.tensors[name], N.tensors[name])) for name in Blast.scaled})
