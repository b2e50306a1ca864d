"""A circulant matrix as a member of classes that contain it."""

from __future__ import annotations

import torch

from ...algebra.convert import convert
from ...core.matrix import StructuredMatrix
from ...core.rules import rule
from ..classical.families import Toeplitz
from ..ldr_td import LDRTridiagonal
from ..ldr_td.exact import shift, tridiagonal
from ..toeplitz_like import ToeplitzLike
from ..toeplitz_like.exact import of_displacement
from . import Circulant


@rule("to_ldr_td", Circulant)
def _(M: Circulant, tol: float | None) -> LDRTridiagonal:
    m, n = M.shape
    column = M.column
    one = torch.zeros(1, min(m, n), dtype=column.dtype, device=column.device)
    one[0, 0] = 1
    if m >= n:  # K_n(Z_1, column) is the matrix itself, K_n(Z_0, e_0) the identity
        return tridiagonal(column.unsqueeze(0), one, shift(column, 1.0), shift(one))
    row = torch.cat((column[:1], column[1:].flip(0))).unsqueeze(0)
    return tridiagonal(one, row, shift(one), shift(row, 1.0))


@rule("to_toeplitz_like", Circulant)
def _(M: Circulant, tol: float | None) -> StructuredMatrix:
    m, n = M.shape
    column = M.column
    if m != n:
        row = torch.cat((column[:1], column[1:].flip(0)))
        return convert(Toeplitz(column[:m], row[:n]), ToeplitzLike)
    one = torch.zeros_like(column)
    one[0] = 1
    return of_displacement(m, n, 2 * column.unsqueeze(0), one.unsqueeze(0))
