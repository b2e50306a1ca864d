"""Real eigenvectors of the symmetric parts of the shifts Z_1 and Z_{-1}.

    Z_1 + Z_1^T          eigenvalues 2 cos(2 pi k / n)          cosines and sines: the Fourier transform of a
                                                                real vector, real and imaginary parts apart
    Z_{-1} + Z_{-1}^T    eigenvalues 2 cos(pi (2k + 1) / n)     the same at half-odd frequencies

Both transforms are orthogonal, one FFT of length n each. No eigenvalue of one is one of the other's, so a
matrix T with T - Z_1 T Z_{-1}^T = P^T Q of rank r, after transforming its columns by the first and its rows
by the second, is Cauchy-like with real nodes and a rank of 2r:

    (Z_1 + Z_1^T) T - T (Z_{-1} + Z_{-1}^T) = [-P; Z_1^T P]^T [Z_{-1}^T Q; Q]    (Z_1^T acts on each vector)

because both shifts are orthogonal. Complex nodes (the roots of 1 and -1) would keep the rank r; real
arithmetic is nearly twice as fast all the same.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def cyclic_nodes(n: int, device: torch.device | None = None) -> Tensor:
    """The eigenvalues of Z_1 + Z_1^T in the order of `cyclic_modes`, shape (n,)."""
    k = torch.arange(n, dtype=torch.float64, device=device)
    return 2 * torch.cos(2 * math.pi / n * torch.minimum(k, n - k))


def cyclic_modes(x: Tensor) -> Tensor:
    """Coefficients of real vectors (..., n) in the eigenvectors of Z_1 + Z_1^T: cosines, then sines.

    The matrix is orthogonal: `cyclic_synthesis` is its inverse and transpose.
    """
    n = x.shape[-1]
    X = torch.fft.rfft(x, norm="ortho")
    paired = X[..., 1 : (n + 1) // 2] * math.sqrt(2)
    middle = X[..., n // 2 :].real if n % 2 == 0 else X.real[..., :0]
    return torch.cat((X[..., :1].real, paired.real, middle, paired.imag.flip(-1)), -1)


def cyclic_synthesis(c: Tensor) -> Tensor:
    """The vectors (..., n) with these coefficients: inverse of `cyclic_modes`."""
    n = c.shape[-1]
    h = (n + 1) // 2
    paired = torch.complex(c[..., 1:h], c[..., n - h + 1 :].flip(-1)) / math.sqrt(2)
    middle = c[..., h : h + 1 - n % 2]
    return torch.fft.irfft(torch.cat((c[..., :1], paired, middle), -1), n, norm="ortho")


def anticyclic_nodes(n: int, device: torch.device | None = None) -> Tensor:
    """The eigenvalues of Z_{-1} + Z_{-1}^T in the order of `anticyclic_modes`, shape (n,)."""
    k = torch.arange(n, dtype=torch.float64, device=device)
    return 2 * torch.cos(math.pi / n * (2 * torch.minimum(k, n - 1 - k) + 1))


def _half_turns(n: int, device: torch.device) -> Tensor:
    """exp(-i pi j / n), shape (n,)."""
    angle = torch.arange(n, dtype=torch.float64, device=device) * (-math.pi / n)
    return torch.polar(torch.ones_like(angle), angle)


def anticyclic_modes(x: Tensor) -> Tensor:
    """Coefficients of real vectors (..., n) in the eigenvectors of Z_{-1} + Z_{-1}^T; orthogonal."""
    n = x.shape[-1]
    X = torch.fft.fft(x * _half_turns(n, x.device), norm="ortho")
    paired = X[..., : n // 2] * math.sqrt(2)
    return torch.cat((paired.real, X[..., n // 2 : (n + 1) // 2].real, paired.imag.flip(-1)), -1)


def anticyclic_synthesis(c: Tensor) -> Tensor:
    """The vectors (..., n) with these coefficients: inverse of `anticyclic_modes`."""
    n = c.shape[-1]
    h = n // 2
    paired = torch.complex(c[..., :h], c[..., n - h :].flip(-1)) / math.sqrt(2)
    X = torch.cat((paired, c[..., h : n - h], paired.conj().flip(-1)), -1)
    return (torch.fft.ifft(X, norm="ortho") * _half_turns(n, c.device).conj()).real


def shift_back(v: Tensor, f: complex) -> Tensor:
    """Z_f^T v for vectors (..., n)."""
    return torch.cat((v[..., 1:], f * v[..., :1]), -1)


def cauchy_like_of_toeplitz_like(P: Tensor, Q: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Nodes and generators of a Toeplitz-like matrix T, T - Z_1 T Z_{-1}^T = P^T Q, among the modes.

    Args:
        P, Q: shape (r, n), float64.

    Returns:
        s, t (n,) and G, H (2r, n) with cyclic_modes(T x)_i = sum_j g_i . h_j / (s_i - t_j)
        anticyclic_modes(x)_j.
    """
    n = P.shape[-1]
    G = cyclic_modes(torch.cat((-P, shift_back(P, 1))))
    H = anticyclic_modes(torch.cat((shift_back(Q, -1), Q)))
    return cyclic_nodes(n, P.device), anticyclic_nodes(n, P.device), G, H
