"""Matrices as Hankel-like ones, and Hankel-like matrices as members of LDR-TD."""

from __future__ import annotations

from torch import Tensor

from ...algebra.convert import convert
from ...core.linear_map import LinearMap
from ...core.matrix import StructuredMatrix
from ...core.rules import rule
from ..classical.families import Hankel
from ..ldr_td import LDRTridiagonal
from ..ldr_td.exact import shift, tridiagonal
from ..toeplitz_like import ToeplitzLike, corner_sign
from ..toeplitz_like.exact import reversed_hankel
from . import HankelLike


@rule("to_hankel_like", Hankel)
def _(M: Hankel, tol: float | None) -> HankelLike:
    return _reversed(convert(reversed_hankel(M), ToeplitzLike))


@rule("to_hankel_like", LinearMap)
def _(M: LinearMap, tol: float | None) -> HankelLike:
    return _of_dense(M.to_dense(), tol)


@rule("to_hankel_like", Tensor)
def _of_dense(W: Tensor, tol: float | None) -> HankelLike:
    return _reversed(convert(W.flip(0), ToeplitzLike, tol=tol))


def _reversed(T: StructuredMatrix) -> HankelLike:
    return HankelLike(*T.shape, G=T.G, H=T.H)


@rule("to_ldr_td", HankelLike)
def _(M: HankelLike, tol: float | None) -> LDRTridiagonal:
    a = float(corner_sign(*M.shape))
    up = shift(M.G, a)
    up["superdiagonal"], up["subdiagonal"] = up["subdiagonal"], up["superdiagonal"]
    up["corners"] = up["corners"].flip(0)
    return tridiagonal(M.G.flip(-1), M.H, up, shift(M.H, -a))
