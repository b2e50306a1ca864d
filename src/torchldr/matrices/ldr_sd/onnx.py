"""LDR-SD in an ONNX graph."""

from __future__ import annotations

from torch import nn

from ...core.rules import rule
from ...functional.exported.grown import of_sides
from ...functional.exported.krylov import convolved
from . import LDRSubdiagonal
from .routes import sides


@rule("onnx", LDRSubdiagonal)
def product(mode: str, M: LDRSubdiagonal) -> nn.Module:
    return convolved(mode, *sides(M), M.dtype) or of_sides(*sides(M))


@rule("onnx_at_load", LDRSubdiagonal)
def _(mode: str, M: LDRSubdiagonal) -> nn.Module:
    return of_sides(*sides(M))
