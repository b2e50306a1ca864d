"""ACDC in an ONNX graph."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from ...core.rules import rule
from ...functional.exported.convolution import toeplitz
from ...functional.exported.transforms import Array
from . import ACDC


class CosineProduct(nn.Module):
    """A C D C^T x for the cosine transform C, the leading m x n part, as one convolution.

    cos(a) cos(b) = (cos(a - b) + cos(a + b)) / 2, so with c_0 = sqrt(1/N), c_k = sqrt(2/N)

        M[i, k] = A_i c_i (t_{i-k} + t_{i+k}) c_k,      t_l = sum_j D_j cos(pi l (2j + 1) / 2N) / 2:

    a Toeplitz product with c x continued evenly to both sides. t_{l + 2N} = -t_l.
    """

    form = "one convolution"
    before: Tensor
    after: Tensor

    def __init__(self, kind: str, A: Tensor, D: Tensor, n: int, dtype: torch.dtype) -> None:
        super().__init__()
        scale, diagonal = (t.detach().double().cpu().numpy() for t in (A, D))
        m, N = len(scale), len(diagonal)
        weights = np.full(N, math.sqrt(2 / N))
        weights[0] = math.sqrt(1 / N)
        symbol = _cosine_symbol(diagonal, m + 2 * n - 2, 1 - n)[None, None]
        self.toeplitz = toeplitz(kind, symbol, 2 - 2 * n, 2 * n - 1, m, dtype, period=2 * N)
        inputs = weights[:n] * np.where(np.arange(n) == 0, 2.0, 1.0)
        self.register_buffer("before", torch.from_numpy(inputs).to(dtype))
        self.register_buffer("after", torch.from_numpy(scale * weights[:m]).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.before
        even = torch.cat((x[:, 1:].flip(-1), x), -1).unsqueeze(1)
        return self.toeplitz(even).squeeze(1) * self.after


def _cosine_symbol(diagonal: Array, count: int, first: int) -> Array:
    """t_l for l = first, .., first + count - 1, by one FFT of length 4N of D at the odd places."""
    N = len(diagonal)
    odd = np.zeros(4 * N)
    odd[1 : 2 * N : 2] = diagonal / 2
    return np.fft.fft(odd).real[np.arange(first, first + count) % (4 * N)]


@rule("onnx", ACDC)
def product(mode: str, M: ACDC) -> nn.Module:
    return CosineProduct(mode, M.A, M.D, M.in_features, M.dtype)
