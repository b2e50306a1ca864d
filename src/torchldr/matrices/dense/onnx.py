"""Unstructured matrices in an ONNX graph."""

from __future__ import annotations

from torch import nn

from ...core.rules import rule
from ...functional.exported.dense import DenseProduct
from . import Dense


@rule("onnx", Dense)
def product(mode: str, M: Dense) -> nn.Module:
    return DenseProduct(M.weight)
