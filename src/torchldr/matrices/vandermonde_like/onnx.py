"""Vandermonde-like matrices in an ONNX graph."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ...core.rules import rule
from ...functional.exported.convolution import toeplitz
from . import VandermondeLike


class VandermondeProduct(nn.Module):
    """sum_i diag(g_i) V T_i x: Toeplitz products, then polynomials at the nodes.

    V[i, j] = node_i^j with j = w a + b is node_i^{w a} node_i^b: a matrix product with small powers, then
    sums with large ones, from constants of m (w + n / w) numbers.
    """

    form = "convolutions, then polynomials at the nodes"
    G: Tensor
    small: Tensor
    large: Tensor

    def __init__(self, kind: str, G: Tensor, H: Tensor, nodes: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        n = H.shape[-1]
        self.width, self.n = math.isqrt(n - 1) + 1, n
        self.steps = -(-n // self.width)
        symbol = H.detach().double().cpu().numpy()[:, None, ::-1]
        self.toeplitz = toeplitz(kind, symbol, 1 - n, n, n, dtype)
        points = nodes.detach().double()
        exponents = torch.arange(self.width, dtype=torch.float64)
        self.register_buffer("small", (points ** exponents.unsqueeze(-1)).to(dtype))  # (w, m)
        steps = torch.arange(self.steps, dtype=torch.float64) * self.width
        self.register_buffer("large", (points ** steps.unsqueeze(-1)).to(dtype))  # (n / w, m)
        self.register_buffer("G", G.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        z = self.toeplitz(x.unsqueeze(1))  # (b, r, n)
        z = pad(z, (0, self.steps * self.width - self.n))
        values = z.reshape(-1, self.G.shape[0], self.steps, self.width) @ self.small
        y = (values * self.large).sum(2) * self.G
        return y.sum(1)


@rule("onnx", VandermondeLike)
def product(mode: str, M: VandermondeLike) -> nn.Module:
    return VandermondeProduct(mode, M.G, M.H, M.nodes, M.dtype)
