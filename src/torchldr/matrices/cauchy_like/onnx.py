"""Cauchy-like matrices in an ONNX graph."""

from __future__ import annotations

from torch import Tensor, nn

from ...core.rules import rule
from . import CauchyLike


class CauchyProduct(nn.Module):
    """x M^T with M = (G^T H) / (s_i - t_j), made in the graph."""

    form = "made from its parameters when loaded"
    G: Tensor
    H: Tensor
    s: Tensor
    t: Tensor

    def __init__(self, G: Tensor, H: Tensor, s: Tensor, t: Tensor) -> None:
        super().__init__()
        for name, value in (("G", G), ("H", H), ("s", s), ("t", t)):
            self.register_buffer(name, value.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return x @ ((self.H.mT @ self.G) / (self.s - self.t.unsqueeze(-1)))


@rule("onnx", CauchyLike)
def product(mode: str, M: CauchyLike) -> nn.Module:
    return CauchyProduct(M.G, M.H, M.s.to(M.dtype), M.t.to(M.dtype))
