"""A whole square LDR-SD product with FFTs of length n, for inference.

With A = D_A Z_f D_A^{-1} and C = D_C Z_e D_C^{-1} (see the package) the matrix between the scalings,

    M' = D_A^{-1} M D_C^{-1} = sum_i K(Z_f, g_i) K(Z_e, h_i)^T,      g = G / P_A,  h = H / P_C,

needs linear convolutions, FFTs of length 2n, because f and e are not 1 and -1. But Z_a differs from Z_f,
and Z_b from Z_e, by one entry each, so the displacement of M' with respect to that pair has only two
more terms, made of the last row and the last column of M':

    M' - Z_a M' Z_b^T = (1 - f e) G^T H + e_0 p^T + q e_0^T,
    p = (f - a) Z_e row,   q = (e - b) Z_f column - (f - a) (e - b) M'_{last, last} e_0,

and, as K(Z_a, e_0) and K(Z_b, e_0) are the identity, for any a and b with a b != 1

    (1 - a b) M' = (1 - f e) sum_i K(Z_a, g_i) K(Z_b, h_i)^T + K(Z_b, p)^T + K(Z_a, q).

With a = 1 and b = -1 that is 2r + 4 FFTs of length n a vector instead of 2r + 2 of length 2n: a quarter less
work at rank one, nearly half at high rank. The constants are computed in float64 once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..fft import conjugate, contract_rank
from ..ring import Ring, ring, shift_krylov_matmul, shift_krylov_rmatmul
from .guard import Side


class CirculantPair(NamedTuple):
    """M prepared: scalings, and spectra of (h_1 .. h_r, p) and of (g_1 .. g_r, q)."""

    P_A: Tensor
    P_C: Tensor
    forward: Ring  # of Z_1
    backward: Ring  # of Z_{-1}
    right: Tensor  # (r + 1, f), conjugated
    left: Tensor  # (r + 1, f)


def prepare(A: Side, C: Side, dtype: torch.dtype) -> CirculantPair:
    """Prepare M = sum_i K(A, g_i) K(C, h_i)^T, square, for products in a dtype."""
    n = A[2].shape[-1]
    forward, backward = ring(n, n, 1), ring(n, n, -1)
    P_A, left, P_C, right = (t.to(dtype) for t in generators(A, C, 1.0, -1.0))
    return CirculantPair(
        P_A, P_C, forward, backward, conjugate(backward.analyse(right)), forward.analyse(left)
    )


def generators(A: Side, C: Side, a: float, b: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """P_A (n,), left (r + 1, n), P_C, right in float64, of a square M with respect to Z_a and Z_b:

    M = D_A (sum_{i < r} K(Z_a, left_i) K(Z_b, right_i)^T + K(Z_a, left_r) + K(Z_b, right_r)^T) D_C.
    """
    (P_A, g, f), (P_C, h, e) = _scaled(A), _scaled(C)
    n = g.shape[-1]
    unit = torch.zeros(1, n, dtype=torch.float64, device=g.device)
    unit[:, -1:].fill_(1)
    column = shift_krylov_matmul(g, shift_krylov_rmatmul(h, unit, e, n), f)[0]
    row = shift_krylov_matmul(h, shift_krylov_rmatmul(g, unit, f, n), e)[0]
    p = (f - a) * _shifted(row, e)
    q = (e - b) * _shifted(column, f)
    q = torch.cat((q[:1] - (f - a) * (e - b) * column[-1:], q[1:]))
    left = torch.cat(((1 - f * e) * g, q.unsqueeze(0))) / (1 - a * b)
    return P_A, left, P_C, torch.cat((h, p.unsqueeze(0) / (1 - a * b)))


def _scaled(side: Side) -> tuple[Tensor, Tensor, Tensor]:
    """The scales, the start vectors over them, and the corner that they leave, in float64."""
    s, corner, V = (t.detach().double() for t in side)
    P = torch.cat((s.new_ones(1), s.cumprod(-1)))
    return P, V / P, corner.reshape(()) * P[-1]


def _shifted(v: Tensor, f: Tensor) -> Tensor:
    """Z_f v."""
    return torch.cat((f * v[-1:], v[:-1]))


def matmul(K: CirculantPair, x: Tensor) -> Tensor:
    """M x for prepared M: (b, n) to (b, n), in the dtype of `x`."""
    scaled = x * K.P_C
    z = K.backward.fold(K.backward.unfold(scaled).unsqueeze(-2) * K.right)
    inner = torch.cat((z[:, :-1], scaled.unsqueeze(1)), 1)
    y = K.forward.synthesise(contract_rank(K.forward.analyse(inner), K.left)) + z[:, -1]
    return (y * K.P_A).to(x.dtype)
