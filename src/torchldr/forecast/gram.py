"""Gram matrices of windows: K = B_c + ridge I of the past, by FFTs or dense, and the whole B_c.

    B = Toeplitz(first column) + (sum over series of L(last) L(last)^T - L(first) L(first)^T) / count,

L(v) the lower triangular Toeplitz matrix with first column (0, v_0, v_1, ..).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..functional.fft import fast_length
from .moments import Moments
from .roots import Roots


class Gram:
    """The leading n x n part of B_c, times vectors: 2 + 4 c FFTs of 2 n for each."""

    def __init__(self, of: Moments, n: int) -> None:
        self.n, self.size, self.center = n, fast_length(2 * n), of.center
        column = of.columns[0][:, :n] / of.count[:, None]
        wrapped = torch.zeros(*column.shape[:-1], self.size, dtype=column.dtype)
        wrapped[:, :n] = column
        wrapped[:, self.size - n + 1 :] += column[:, 1:].flip(-1)
        self.toeplitz = torch.fft.rfft(wrapped).real[:, None]
        self.column, self.c = column, of.c[:, None, :n]
        scale = of.count.rsqrt()[:, None, None]
        self.ends = [(end[..., : n - 1] * scale, sign) for end, sign in ((of.last, 1.0), (of.first, -1.0))]
        self.spectra = [
            (torch.fft.rfft(torch.nn.functional.pad(v, (1, 0)), self.size), sign)
            for end, sign in self.ends
            for v in end.split(1, -2)
        ]

    def __call__(self, x: Tensor) -> Tensor:
        """B_c x for x (b, p, n)."""
        n, size = self.n, self.size
        X = torch.fft.rfft(x, size)
        Y = self.toeplitz * X
        for V, sign in self.spectra:
            inner = torch.fft.irfft(X * V.conj(), size)[..., :n]
            Y = Y + torch.fft.rfft(inner, size) * (sign * V)
        y = torch.fft.irfft(Y, size)[..., :n]
        if self.center is not None:
            y = y - x.sum(-1, keepdim=True) * self.c - (x * self.c).sum(-1, keepdim=True)
        return y

    def diagonal(self, basis: Roots) -> Tensor:
        """The diagonal in the eigenbasis of a shift, (b, n).

        These are the eigenvalues of the nearest matrix with this basis; with Z_1 that is T. Chan's circulant.
        """
        n, size = self.n, self.size
        sums = self.column * torch.arange(n, 0, -1, dtype=self.column.dtype)  # of the diagonals of B
        for end, sign in self.ends:
            left = torch.arange(n - 1, 0, -1, dtype=end.dtype)
            product = torch.fft.rfft(end * left, size) * torch.fft.rfft(end, size).conj()
            sums[:, : n - 1] += sign * torch.fft.irfft(product.sum(-2), size)[:, : n - 1]
        c = self.c[:, 0]
        sums = sums - c.cumsum(-1).flip(-1) - c.flip(-1).cumsum(-1).flip(-1)
        return (2 * n**0.5 * basis.analyse(sums).real - sums[:, :1]) / n


def dense_gram(of: Moments, n: int, rows: int | None = None) -> Tensor:
    """The leading n x n part of B_c, or its first rows, (b, rows, n): O(c n) for each."""
    rows = n if rows is None else rows
    Q, J = of.steps()
    Q = Q[..., : n - 1]
    K = torch.empty(len(Q), rows, n, dtype=Q.dtype)
    first = of.column(0)
    K[:, 0], K[:, :, 0] = first[:, :n], first[:, :rows]
    K[:, 1:, 1:] = Q[..., : rows - 1].mT @ (J @ Q)
    for i in range(rows - 1):
        K[:, i + 1, 1:] += K[:, i, :-1]
    return K


def null_vector(center: str | None, n: int) -> Tensor | None:
    """The unit vector that B_c takes to zero."""
    if center is None:
        return None
    v = torch.zeros(n, dtype=torch.float64)
    if center == "last":
        v[-1] = 1
    else:
        v[:] = 1 / math.sqrt(n)
    return v


def stein(of: Moments, ridge: Tensor, f: float, g: float) -> tuple[Tensor, Tensor]:
    """X and Y (b, q + 2, L) with K - Z_f K Z_g^T = X^T Y, for K = B_c[:L, :L] + ridge I.

    Inside are the steps of B_c, outside what the corners bring round: the first row and column.
    """
    L = of.past
    Q, J = of.steps()
    first, last = of.column(0)[:, :L].clone(), of.column(L - 1)[:, :L].clone()
    first[:, 0] += ridge
    last[:, -1] += ridge
    inside = torch.nn.functional.pad(Q[..., : L - 1], (1, 0))
    row = first - torch.cat((f * g * last[:, -1:], f * last[:, :-1]), -1)
    column = first - torch.cat((first[:, :1], g * last[:, :-1]), -1)
    unit = torch.zeros_like(row)
    unit[:, 0] = 1
    X = torch.cat((J.mT @ inside, unit[:, None], column[:, None]), -2)
    return X, torch.cat((inside, row[:, None], unit[:, None]), -2)
