"""Toeplitz-like matrices in an ONNX graph."""

from __future__ import annotations

from torch import nn

from ...core.rules import rule
from ...functional.exported.grown import of_sides
from ...functional.exported.krylov import convolved
from . import ToeplitzLike


@rule("onnx", ToeplitzLike)
def product(mode: str, M: ToeplitzLike) -> nn.Module:
    made = convolved(mode, *M._sides(), M.dtype)
    assert made is not None  # products of ones have a range of 1
    return made


@rule("onnx_at_load", ToeplitzLike)
def _(mode: str, M: ToeplitzLike) -> nn.Module:
    return of_sides(*M._sides())
