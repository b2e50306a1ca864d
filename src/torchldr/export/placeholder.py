"""A product as torch's exporter sees it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

DOMAIN, OPERATOR = "torchldr", "Product"


class Placeholder(nn.Module):
    """A product as the exporter sees it: one node, replaced by `graph.expand`."""

    def __init__(self, index: int, out_features: int) -> None:
        super().__init__()
        self.index, self.out_features = index, out_features

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:-1], self.out_features)
        return torch.onnx.ops.symbolic(
            f"{DOMAIN}::{OPERATOR}", (x,), {"index": self.index}, dtype=x.dtype, shape=shape, version=1
        )
