"""Block-circulant matrices in an ONNX graph."""

from __future__ import annotations

from torch import nn

from ...core.rules import rule
from ..circulant.onnx import circulant_product
from . import BlockCirculant


@rule("onnx", BlockCirculant)
def product(mode: str, M: BlockCirculant) -> nn.Module:
    return circulant_product(mode, M.column, M.out_features, M.in_features, M.dtype)
