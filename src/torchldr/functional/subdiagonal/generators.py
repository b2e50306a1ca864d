"""The generators of a square LDR-SD matrix with respect to two circulant shifts.

With A = D_A Z_f D_A^{-1} and C = D_C Z_e D_C^{-1} (see the package) the matrix between the scalings,

    M' = D_A^{-1} M D_C^{-1} = sum_i K(Z_f, g_i) K(Z_e, h_i)^T,      g = G / P_A,  h = H / P_C,

needs linear convolutions, FFTs of length 2n, because f and e are not 1 and -1. But Z_a differs from Z_f,
and Z_b from Z_e, by one entry each, so the displacement of M' with respect to that pair has only two
more terms, made of the last row and the last column of M':

    M' - Z_a M' Z_b^T = (1 - f e) G^T H + e_0 p^T + q e_0^T,
    p = (f - a) Z_e row,   q = (e - b) Z_f column - (f - a) (e - b) M'_{last, last} e_0,

and, as K(Z_a, e_0) and K(Z_b, e_0) are the identity, for any a and b with a b != 1

    (1 - a b) M' = (1 - f e) sum_i K(Z_a, g_i) K(Z_b, h_i)^T + K(Z_b, p)^T + K(Z_a, q).

That is 2r + 4 FFTs of length n a vector instead of 2r + 2 of length 2n: a quarter less work at rank one,
nearly half at high rank. All of this is computed in float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..fft import conjugate, fast_length
from .guard import Side


def generators(A: Side, C: Side, a: float, b: float) -> tuple[Tensor, Tensor]:
    """P of both operators, (2, n), and left and right, (2, r + 1, n), of a square M with respect to Z_a, Z_b:

    M = D_A (sum_{i < r} K(Z_a, left_i) K(Z_b, right_i)^T + K(Z_a, left_r) + K(Z_b, right_r)^T) D_C.

    In float64. Differentiable, where no entry of a subdiagonal is 0.
    """
    s, corner, V = map(torch.stack, zip(A, C, strict=True))
    of = _scaled(s, corner.flatten(), V)
    return of.P, _made(of, a, b)


class _Scaled(NamedTuple):
    """Both operators between their scalings, in float64, and what the last column and row of M' are made of.

    Powers of a shift bring every entry to the last place, so the last column is sum_i K(Z_f, g_i) h_i^-, h^-
    from the last entry to the first. Row and column have the correlations of g and h, of all lags.
    """

    P: Tensor  # (2, n)
    v: Tensor  # (2, r, n): g and h
    corners: Tensor  # (2,): f and e
    spectra: Tensor  # of v, (2, r, ..)
    last: Tensor  # the correlation of lag 0, (1,)
    after: Tensor  # of lags 1 to n - 1
    before: Tensor  # of lags 1 - n to -1


def _scaled(s: Tensor, corner: Tensor, V: Tensor) -> _Scaled:
    n, length = V.shape[-1], _length(V)
    P = _products(s.double())
    v = V / P.unsqueeze(1)
    spectra = torch.fft.rfft(v, length)
    t = torch.fft.irfft((spectra[0] * conjugate(spectra[1])).sum(0), length)
    return _Scaled(P, v, corner * P[:, -1], spectra, t[:1], t[1:n], t[length - n + 1 :])


def _products(s: Tensor) -> Tensor:
    """1, s_1, s_1 s_2, .. by logarithms: the derivative of torch's cumprod makes a GPU wait."""
    sizes = s.abs().log().cumsum(-1).exp() * s.detach().sign().cumprod(-1)
    return pad(sizes, (1, 0), value=1.0)


def _length(V: Tensor) -> int:
    """Of transforms that hold correlations of all lags."""
    return fast_length(2 * V.shape[-1] - 1)


def _made(of: _Scaled, a: float, b: float) -> Tensor:
    """Left and right, (2, r + 1, n)."""
    (f, e), factor = of.corners, 1 / (1 - a * b)
    q = torch.cat((a * of.last, torch.addcmul(of.before, f, of.after))) * ((e - b) * factor)
    p = torch.cat((e * of.last, torch.addcmul(of.after, e, of.before).flip(0))) * ((f - a) * factor)
    left = torch.cat((of.v[0] * ((1 - f * e) * factor), q.unsqueeze(0)))
    return torch.stack((left, torch.cat((of.v[1], p.unsqueeze(0)))))
