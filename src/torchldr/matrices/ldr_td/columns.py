"""The dense matrix of LDR-TD: Krylov columns of both rings and one matrix product."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...kernels.cpu.loop import Loop

Ring = tuple[Tensor, Tensor, Tensor]


def tridiagonal_dense(A: Ring, C: Ring, G: Tensor, H: Tensor) -> Tensor:
    """The LDR-TD matrix of two rings (lower, diagonal, upper) and generators (r, m) and (r, n).

    (A x)_i = lower_i x_{i-1} + diagonal_i x_i + upper_i x_{i+1}, indices modulo m. 2 r k m n operations
    forward and twice that backward, k = min(m, n). The same, slowly: `LDRTridiagonal(..).to_dense()`.
    """
    k = min(G.shape[1], H.shape[1])
    left, right = _Columns.apply(*A, G, k), _Columns.apply(*C, H, k)
    return left.flatten(0, 1).mT @ right.flatten(0, 1)


class _Columns(torch.autograd.Function):
    """(lower, diagonal, upper, V (r, m), k) to the Krylov matrices of every row of V, (r, k, m)."""

    @staticmethod
    def forward(ctx: Any, lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, k: int) -> Tensor:
        K = V.new_empty(V.shape[0], k, V.shape[1])
        K[:, 0] = V
        _FORWARD(lower, diagonal, upper, K)
        ctx.save_for_backward(lower, diagonal, upper, K)
        return K

    @staticmethod
    def backward(ctx: Any, U: Tensor) -> tuple[Tensor | None, ...]:
        lower, diagonal, upper, K = ctx.saved_tensors
        dK = U.clone(memory_format=torch.contiguous_format)
        gradients = torch.zeros_like(lower), torch.zeros_like(diagonal), torch.zeros_like(upper)
        _BACKWARD(lower, diagonal, upper, K, dK, *gradients)
        return *gradients, dK[:, 0], None


def _forward(lower: Any, diagonal: Any, upper: Any, K: Any) -> None:
    """Every column from the one before."""
    r, k, m = K.shape
    for i in range(r):
        for j in range(1, k):
            x, y = K[i, j - 1], K[i, j]
            for p in range(1, m - 1):
                y[p] = lower[p] * x[p - 1] + diagonal[p] * x[p] + upper[p] * x[p + 1]
            y[0] = lower[0] * x[m - 1] + diagonal[0] * x[0] + upper[0] * x[1 % m]
            if m > 1:
                y[m - 1] = lower[m - 1] * x[m - 2] + diagonal[m - 1] * x[m - 1] + upper[m - 1] * x[0]


def _backward(lower: Any, diagonal: Any, upper: Any, K: Any, dK: Any, dl: Any, dd: Any, du: Any) -> None:
    """dK_{j-1} += A^T dK_j from the last column back, and dA += dK_j K_{j-1}^T on the three diagonals."""
    r, k, m = K.shape
    for i in range(r):
        for j in range(k - 1, 0, -1):
            x, after, before = K[i, j - 1], dK[i, j], dK[i, j - 1]
            for p in range(1, m):
                dl[p] += after[p] * x[p - 1]
                before[p - 1] += lower[p] * after[p]
            for p in range(m):
                dd[p] += after[p] * x[p]
                before[p] += diagonal[p] * after[p]
            for p in range(m - 1):
                du[p] += after[p] * x[p + 1]
                before[p + 1] += upper[p] * after[p]
            dl[0] += after[0] * x[m - 1]
            before[m - 1] += lower[0] * after[0]
            du[m - 1] += after[m - 1] * x[0]
            before[0] += upper[m - 1] * after[m - 1]


def _plain_forward(lower: Tensor, diagonal: Tensor, upper: Tensor, K: Tensor) -> None:
    for j in range(1, K.shape[1]):
        x = K[:, j - 1]
        K[:, j] = lower * x.roll(1, -1) + diagonal * x + upper * x.roll(-1, -1)


def _plain_backward(
    lower: Tensor, diagonal: Tensor, upper: Tensor, K: Tensor, dK: Tensor, dl: Tensor, dd: Tensor, du: Tensor
) -> None:
    for j in range(K.shape[1] - 1, 0, -1):
        x, after = K[:, j - 1], dK[:, j]
        dl += (after * x.roll(1, -1)).sum(0)
        dd += (after * x).sum(0)
        du += (after * x.roll(-1, -1)).sum(0)
        dK[:, j - 1] += (lower * after).roll(-1, -1) + diagonal * after + (upper * after).roll(1, -1)


_RING, _COLUMNS = [(5,)] * 3, (2, 4, 5)
_FORWARD = Loop(_forward, _plain_forward, *_RING, _COLUMNS)
_BACKWARD = Loop(_backward, _plain_backward, *_RING, _COLUMNS, _COLUMNS, *_RING)
