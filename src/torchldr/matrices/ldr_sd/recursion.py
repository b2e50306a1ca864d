"""The dense matrix of LDR-SD by one recursion along its diagonals, in O(m n) after G^T H.

For M = sum_{l < k} A^l E (C^T)^l with E = G^T H and rings A and C given by their edges a (m) and c (n),

    (A X C^T)_ij = a_i c_j X_{i-1, j-1}    (indices modulo m and n; a_0 and c_0 are the corners),

and M - A M C^T = E - A^k E (C^T)^k. For k = m <= n the power A^m is f I with f = a_0 a_1 .. a_{m-1}, so

    M_i = a_i (c o shift M_{i-1}) + E'_i,   E' = G^T (H - f C^m H),

row after row, once the last row is known, and that one is the same recursion on E begun with zeros.
Nothing is divided: every operator is fine. m > n is the transposed problem.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...kernels.cpu.loop import Loop


def subdiagonal_dense(a: Tensor, c: Tensor, G: Tensor, H: Tensor) -> Tensor:
    """The LDR-SD matrix with edges a (m) and c (n) and generators G (r, m) and H (r, n), shape (m, n).

    The same, slowly: `LDRSubdiagonal(..).to_dense()`. Differentiable once in every argument.
    """
    m, n = a.shape[0], c.shape[0]
    if m > n:
        return subdiagonal_dense(c, a, H, G).mT
    last = _Rows.apply(a, c, G.mT @ H, torch.zeros_like(c))[-1]
    return _Rows.apply(a, c, G.mT @ (H - a.prod() * ring_power(c, m, H)), last)


def ring_power(c: Tensor, k: int, H: Tensor) -> Tensor:
    """C^k h for every row h of H, C the ring with edges c: by doubling, log2(k) products of edges."""
    # w holds the products of `done` successive edges that end at each place.
    w, done = torch.ones_like(c), 0
    for bit in bin(k)[2:]:
        w, done = w * w.roll(done), 2 * done
        if bit == "1":
            w, done = c * w.roll(1), done + 1
    return w * H.roll(k, -1)


class _Rows(torch.autograd.Function):
    """(a, c, E, first) to X with X_i = a_i (c o shift X_{i-1}) + E_i and X_{-1} = first."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, c: Tensor, E: Tensor, first: Tensor) -> Tensor:
        X = torch.empty_like(E, memory_format=torch.contiguous_format)
        _FORWARD(a, c, E, first, X)
        ctx.save_for_backward(a, c, first, X)
        return X

    @staticmethod
    def backward(ctx: Any, U: Tensor) -> tuple[Tensor, ...]:
        a, c, first, X = ctx.saved_tensors
        Lambda = U.clone(memory_format=torch.contiguous_format)
        da, dc, d_first = torch.zeros_like(a), torch.zeros_like(c), torch.zeros_like(first)
        _BACKWARD(a, c, first, X, Lambda, da, dc, d_first)
        return da, dc, Lambda, d_first


def _forward(a: Any, c: Any, E: Any, first: Any, X: Any) -> None:
    m, n = E.shape
    for i in range(m):
        before = first if i == 0 else X[i - 1]
        row, e, edge = X[i], E[i], a[i]
        row[0] = edge * c[0] * before[n - 1] + e[0]
        for j in range(1, n):
            row[j] = edge * c[j] * before[j - 1] + e[j]


def _backward(a: Any, c: Any, first: Any, X: Any, Lambda: Any, da: Any, dc: Any, d_first: Any) -> None:
    """Lambda comes as the gradient of X and leaves as that of E: the recursion run backwards."""
    m, n = X.shape
    for i in range(m - 1, -1, -1):
        before, d_before = (first, d_first) if i == 0 else (X[i - 1], Lambda[i - 1])
        row, edge = Lambda[i], a[i]
        total = row[0] * c[0] * before[n - 1]
        dc[0] += edge * row[0] * before[n - 1]
        d_before[n - 1] += edge * c[0] * row[0]
        for j in range(1, n):
            total += row[j] * c[j] * before[j - 1]
            dc[j] += edge * row[j] * before[j - 1]
            d_before[j - 1] += edge * c[j] * row[j]
        da[i] = total


def _plain_forward(a: Tensor, c: Tensor, E: Tensor, first: Tensor, X: Tensor) -> None:
    before = first
    for i in range(E.shape[0]):
        before = a[i] * (c * before.roll(1)) + E[i]
        X[i] = before


def _plain_backward(
    a: Tensor, c: Tensor, first: Tensor, X: Tensor, Lambda: Tensor, da: Tensor, dc: Tensor, d_first: Tensor
) -> None:
    for i in range(X.shape[0] - 1, -1, -1):
        before, d_before = (first, d_first) if i == 0 else (X[i - 1], Lambda[i - 1])
        moved = before.roll(1)
        da[i] = (Lambda[i] * c) @ moved
        dc += a[i] * Lambda[i] * moved
        d_before += (a[i] * c * Lambda[i]).roll(-1)


_SHAPE = (4, 5)
_FORWARD = Loop(_forward, _plain_forward, (4,), (5,), _SHAPE, (5,), _SHAPE)
_BACKWARD = Loop(_backward, _plain_backward, (4,), (5,), (5,), _SHAPE, _SHAPE, (4,), (5,), (5,))
