"""A low-rank matrix as a member of classes that contain it."""

from __future__ import annotations

import torch

from ...algebra.convert import convert
from ...core.matrix import StructuredMatrix
from ...core.rules import rule
from ..ldr_td import LDRTridiagonal
from ..ldr_td.exact import diagonal, tridiagonal
from ..toeplitz_like import ToeplitzLike, corner_sign
from ..toeplitz_like.exact import down, of_displacement
from . import LowRank


@rule("to_ldr_td", LowRank)
def _(M: LowRank, tol: float | None) -> LDRTridiagonal:
    m, n = M.shape
    return tridiagonal(M.G, M.H, diagonal(M.G.new_zeros(m)), diagonal(M.H.new_zeros(n)))


@rule("to_toeplitz_like", LowRank)
def _(M: LowRank, tol: float | None) -> StructuredMatrix:
    m, n = M.shape
    if 2 * M.G.shape[0] > min(m, n):
        return convert(M.to_dense(), ToeplitzLike, tol=tol)
    a = corner_sign(m, n)
    return of_displacement(m, n, torch.cat((M.G, -down(M.G, a))), torch.cat((M.H, down(M.H, -a))))
