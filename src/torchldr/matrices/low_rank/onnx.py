"""Low-rank matrices in an ONNX graph."""

from __future__ import annotations

from torch import Tensor, nn

from ...core.rules import rule
from . import LowRank


class LowRankProduct(nn.Module):
    """x H^T G."""

    form = "two matrix products"
    G: Tensor
    H: Tensor

    def __init__(self, G: Tensor, H: Tensor) -> None:
        super().__init__()
        self.register_buffer("G", G.detach().clone())
        self.register_buffer("H", H.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.H.mT) @ self.G


@rule("onnx", LowRank)
@rule("onnx_at_load", LowRank)
def product(mode: str, M: LowRank) -> nn.Module:
    return LowRankProduct(M.G, M.H)
