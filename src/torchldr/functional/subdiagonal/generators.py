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

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..fft import conjugate, fast_length
from .guard import Side


def generators(A: Side, C: Side, a: float, b: float) -> tuple[Tensor, Tensor, Tensor]:
    """A square M with respect to Z_a and Z_b, without the common scale of A and C, as `guard` removes it:

    M = D_A (sum_{i < r} K(Z_a, left_i) K(Z_b, right_i)^T + K(Z_a, left_r) + K(Z_b, right_r)^T) D_C.

    Returns:
        D_A and D_C, (2, n); left and right, (2, r + 1, n); f and e. In float64, and differentiable where no
        entry of a subdiagonal is 0.
    """
    s, corner, V = map(torch.stack, zip(A, C, strict=True))
    s, corner = s.double(), corner.flatten().double()
    sizes = s.abs().log2()
    with torch.no_grad():
        scale = sizes.mean(-1, keepdim=True)
        scale = (scale.flip(0) - scale) / 2
        signs = s.sign().cumprod(-1)
    # By logarithms: the derivative of torch's cumprod makes a GPU wait.
    P = pad((sizes + scale).cumsum(-1).exp2() * signs, (1, 0), value=1.0)
    corners = corner * scale.exp2().squeeze(-1) * P[:, -1]
    f, e = corners
    return P, _made(V / P.unsqueeze(1), f, e, a, b), corners


def generators_of_shifts(G: Tensor, H: Tensor, f: float, a: float, b: float) -> tuple[Tensor, Tensor]:
    """Those of sum_i K(Z_f, g_i) K(Z_{-f}, h_i)^T: ones, and left and right."""
    v = torch.stack((G, H)).double()
    return torch.ones_like(v[:, 0]), _made(v, f, -f, a, b)


def _made(v: Tensor, f: Tensor | float, e: Tensor | float, a: float, b: float) -> Tensor:
    """Left and right, (2, r + 1, n), from g and h, (2, r, n), and both corners.

    Powers of a shift bring every entry to the last place. So the last column of M' is the sum of
    K(Z_f, g_i) h_i^-, h^- from the last entry to the first: row and column have the correlations of g and h,
    of all lags.
    """
    n, length, factor = v.shape[-1], fast_length(2 * v.shape[-1] - 1), 1 / (1 - a * b)
    spectra = torch.fft.rfft(v, length)
    t = torch.fft.irfft((spectra[0] * conjugate(spectra[1])).sum(0), length)
    last, after, before = t[:1], t[1:n], t[length - n + 1 :]
    q = torch.cat((a * last, before + f * after)) * ((e - b) * factor)
    p = torch.cat((e * last, (after + e * before).flip(0))) * ((f - a) * factor)
    left = torch.cat((v[0] * ((1 - f * e) * factor), q.unsqueeze(0)))
    return torch.stack((left, torch.cat((v[1], p.unsqueeze(0)))))
