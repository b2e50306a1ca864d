"""Monarch matrices in an ONNX graph."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import pad

from ...core.rules import rule
from . import Monarch


class MonarchProduct(nn.Module):
    """Two batched matrix products, with `first` (v, q, r u) and `second` (u, v r, p)."""

    form = "two batched matrix products"
    first: Tensor
    second: Tensor

    def __init__(self, first: Tensor, second: Tensor, size: int) -> None:
        super().__init__()
        self.register_buffer("first", first.detach().clone())
        self.register_buffer("second", second.detach().clone())
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        (v, q, _), (u, inner, p) = self.first.shape, self.second.shape
        x = pad(x, (0, v * q - x.shape[-1])).reshape(-1, v, q)
        z = (x.permute(1, 0, 2) @ self.first).reshape(v, -1, inner // v, u)
        y = z.permute(3, 1, 0, 2).reshape(u, -1, inner) @ self.second
        return y.permute(1, 0, 2).reshape(-1, u * p)[:, : self.size]


@rule("onnx", Monarch)
def product(mode: str, M: Monarch) -> nn.Module:
    return MonarchProduct(*M.stages(), M.out_features)
