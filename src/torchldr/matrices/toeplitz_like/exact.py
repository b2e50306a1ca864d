"""Matrices as Toeplitz-like ones, exactly.

M - A M C^T = R - A^k R (C^k)^T can be solved for R = G^T H: one of Z_a^k, Z_{-a}^k is a multiple of the
identity. So every matrix is Toeplitz-like of the rank of M - Z_a M Z_{-a}^T: 2 for Toeplitz matrices, 1 for
circulant ones, 2 r for rank r.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.linear_map import LinearMap
from ...core.rules import rule
from ..classical.families import Hankel, Toeplitz
from . import ToeplitzLike, corner_sign


@rule("to_toeplitz_like", LinearMap)
def _(M: LinearMap, tol: float | None) -> ToeplitzLike:
    return _of_dense(M.to_dense(), tol)


@rule("to_toeplitz_like", Tensor)
def _of_dense(W: Tensor, tol: float | None) -> ToeplitzLike:
    """By the SVD of the displacement."""
    if W.ndim != 2 or not W.is_floating_point():
        raise TypeError(f"convert: the matrix must be real, (m, n), got {W.dtype}, {tuple(W.shape)}.")
    m, n = W.shape
    a = corner_sign(m, n)
    moved = down(down(W.mT, a).mT, -a)  # Z_a M Z_{-a}^T
    U, s, V = torch.linalg.svd(W - moved, full_matrices=False)
    least = (max(m, n) * torch.finfo(W.dtype).eps if tol is None else tol) * s[0]
    r = max(1, int((s > least).sum()))
    root = s[:r].sqrt().unsqueeze(-1)
    return of_displacement(m, n, root * U[:, :r].mT, root * V[:r])


@rule("to_toeplitz_like", Toeplitz)
def _(M: Toeplitz, tol: float | None) -> ToeplitzLike:
    if M.dtype.is_complex:
        raise TypeError(f"Toeplitz: the classes of layers are real, got {M.dtype}.")
    (m, n), t = M.shape, M.entries
    a = corner_sign(m, n)
    # The displacement is its first row and column; t[d] of diagonal d stands at d + n - 1.
    corner = t[n - 1 : n] + t[m - 1 : m]
    row = torch.cat((corner, (t[: n - 1] - a * t[m : m + n - 1]).flip(0)))
    column = torch.cat((corner, t[n:] + a * t[: m - 1]))
    return of_displacement(m, n, *cross(column, row))


def down(x: Tensor, f: float) -> Tensor:
    """Z_f x along the last axis."""
    return torch.cat((f * x[..., -1:], x[..., :-1]), -1)


def cross(column: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """G and H of the matrix that is zero but for this first column and row, which share their corner."""
    m, n = column.shape[0], row.shape[0]
    first, other = row.new_zeros(m), row.new_zeros(n)
    first[0], other[0] = 1, 1
    if m == 1 or n == 1:
        return (first.unsqueeze(0), row.unsqueeze(0)) if m == 1 else (column.unsqueeze(0), other.unsqueeze(0))
    return torch.stack((first, column * (1 - first))), torch.stack((row, other))


def of_displacement(m: int, n: int, G: Tensor, H: Tensor) -> ToeplitzLike:
    """The Toeplitz-like matrix whose displacement is G^T H."""
    a = corner_sign(m, n)
    if n <= m:  # Z_{-a}^n = -a: (1 + a Z_a^n) R
        G = _solve_power(G, a, n, a)
    else:  # Z_a^m = a: R (1 - a Z_{-a}^m)^T
        H = _solve_power(H, -a, m, -a)
    return ToeplitzLike(m, n, G=G, H=H)


def _solve_power(v: Tensor, f: int, p: int, c: int) -> Tensor:
    """(1 + c Z_f^p)^{-1} v along the last axis, f = 1 or -1, by the eigenvectors of Z_f.

    They are the Fourier vectors, times exp(i pi j / n) for f = -1; the eigenvalues are mu^n = f.
    """
    n = v.shape[-1]
    if p % n == 0:
        return v / (1 + c * f ** (p // n))
    j = torch.arange(n, dtype=torch.float64, device=v.device)
    half = 0.0 if f == 1 else 1.0
    twist = torch.polar(torch.ones_like(j), j * (torch.pi * half / n))
    mu_p = torch.polar(torch.ones_like(j), (2 * j + half) * (torch.pi * p / n))
    spectrum = torch.fft.ifft(v * twist) / (1 + c * mu_p)
    return (torch.fft.fft(spectrum) * twist.conj()).real.to(v.dtype)


def reversed_hankel(M: Hankel) -> Toeplitz:
    """The Toeplitz matrix of a Hankel one's rows from the last to the first: its first row is the last."""
    return Toeplitz(M.column.flip(0), M.last_row)
