"""Sums of Kronecker products in an ONNX graph."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import pad

from ...core.rules import rule
from . import Kronecker


class KroneckerProduct(nn.Module):
    """Two matrix products, with `first` (d, r b) and `second` (a, r c)."""

    form = "two matrix products"
    first: Tensor
    second: Tensor

    def __init__(self, A: Tensor, B: Tensor, size: int) -> None:
        super().__init__()
        self.register_buffer("first", B.detach().flatten(0, 1).mT.clone())
        self.register_buffer("second", A.detach().transpose(0, 1).flatten(1).clone())
        self.size, self.blocks, self.rank = size, A.shape[-1], A.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        (d, inner), (a, _), c, r = self.first.shape, self.second.shape, self.blocks, self.rank
        z = pad(x, (0, c * d - x.shape[-1])).reshape(-1, c, d) @ self.first
        z = z.reshape(-1, c, r, inner // r).permute(0, 2, 1, 3).reshape(-1, r * c, inner // r)
        return (self.second @ z).reshape(-1, a * (inner // r))[:, : self.size]


@rule("onnx", Kronecker)
def product(mode: str, M: Kronecker) -> nn.Module:
    return KroneckerProduct(M.A, M.B, M.out_features)
