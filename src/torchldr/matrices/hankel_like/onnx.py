"""Hankel-like matrices in an ONNX graph: Toeplitz-like, then reversed."""

from __future__ import annotations

from torch import Tensor, nn

from ...core.rules import rule
from ..toeplitz_like.onnx import product as toeplitz_product
from . import HankelLike


class Reversed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.form = inner, inner.form

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).flip(-1)


@rule("onnx", HankelLike)
def product(mode: str, M: HankelLike) -> nn.Module:
    return Reversed(toeplitz_product(mode, M))
