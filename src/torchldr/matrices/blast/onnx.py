"""BLAST matrices in an ONNX graph."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import pad

from ...core.rules import rule
from . import Blast


class BlastProduct(nn.Module):
    """Three batched matrix products, with `G` (u, r, p), `S` (r, u, v) and `H` (v, q, r)."""

    form = "three batched matrix products"
    G: Tensor
    S: Tensor
    H: Tensor

    def __init__(self, G: Tensor, S: Tensor, H: Tensor, size: int) -> None:
        super().__init__()
        for name, value in (("G", G), ("S", S), ("H", H)):
            self.register_buffer(name, value.detach().clone())
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        (u, _, p), (v, q, _) = self.G.shape, self.H.shape
        x = pad(x, (0, v * q - x.shape[-1])).reshape(-1, v, q)
        z = (x.permute(1, 0, 2) @ self.H).permute(2, 0, 1)  # (r, v, b)
        y = (self.S @ z).permute(1, 2, 0) @ self.G  # (u, b, p)
        return y.permute(1, 0, 2).reshape(-1, u * p)[:, : self.size]


@rule("onnx", Blast)
def product(mode: str, M: Blast) -> nn.Module:
    G, H = M.bases()
    return BlastProduct(G, M.S, H.mT, M.out_features)
