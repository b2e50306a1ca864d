"""Solving with rings: the f-circulant matrices F_f(w), first column w, w_{n-1} .. w_1 coming back times f.

    matrix        F_f(w) = K(Z_f, w) = sum_j w_j Z_f^j
    polynomial    F_f(w) y = w(X) y(X) mod X^n - f

For f = 0 the matrix is lower triangular: forward substitution, O(n^2), whose rounding errors stay in
proportion to each entry whatever the scales of rows and columns. For f != 0 the ring is closed: with
phi = f^{1/n} and D = diag(phi^j), F_f(w) = D^{-1} F_1(D w) D, two FFTs.
"""

from __future__ import annotations

import cmath

import torch
from torch import Tensor

from ..kernels.cpu import gko, library
from ..torch_private import are_recorded


def ring_solve(w: Tensor, f: float, b: Tensor, *, transposed: bool = False) -> Tensor:
    """Solve F_f(w) y = b, or F_f(w)^T y = b, for every row of b.

    Args:
        w: first column, shape (n,), float64.
        f: what comes back over the corner; 0 makes the matrix triangular.
        b: shape (p, n).

    Returns:
        Shape (p, n); entries are inf or nan where the matrix is singular.

    The same, slowly: `torch.linalg.solve(krylov_reference(shift_reference(n, f), w, n), b.mT).mT`.
    """
    if transposed:  # F_f(w)^T is F_f(w) with rows and columns in reverse order
        return ring_solve(w, f, b.flip(-1)).flip(-1)
    if f == 0:
        return lower_toeplitz_solve(w, b)
    n = w.shape[0]
    angle = cmath.phase(f) / n
    j = torch.arange(n, dtype=torch.float64, device=w.device)
    D = torch.polar(abs(f) ** (j / n), angle * j)
    return (torch.fft.ifft(torch.fft.fft(b * D) / torch.fft.fft(w * D)) / D).real


def lower_toeplitz_solve(w: Tensor, b: Tensor) -> Tensor:
    """Forward substitution with the lower triangular Toeplitz matrix of first column w, for rows of b."""
    y = b.clone(memory_format=torch.contiguous_format)
    recorded = torch.compiler.is_compiling() or are_recorded()
    if w.dtype is torch.float64 and library.serves(w, y) and not recorded:
        gko.substitute(w.resolve_neg().contiguous(), y)
    else:
        _plain(w, y)
    return y


def _plain(w: Tensor, y: Tensor) -> None:
    n = w.shape[0]
    for i in range(n):
        y[:, i] /= w[0]
        y[:, i + 1 :] -= y[:, i : i + 1] * w[1 : n - i]
