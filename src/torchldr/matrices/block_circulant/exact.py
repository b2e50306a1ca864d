"""A block-circulant matrix as a member of LDR-TD."""

from __future__ import annotations

from ...algebra.convert import convert
from ...core.matrix import StructuredMatrix
from ...core.rules import rule
from ..ldr_td import LDRTridiagonal
from ..toeplitz_like import ToeplitzLike
from . import BlockCirculant


@rule("to_ldr_td", BlockCirculant)
def _(M: BlockCirculant, tol: float | None) -> StructuredMatrix:
    return convert(convert(M, ToeplitzLike, tol=tol), LDRTridiagonal)
