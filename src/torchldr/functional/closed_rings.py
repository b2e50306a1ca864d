"""A whole square LDR-SD product with FFTs of length n, for inference.

With A = D_A Z_f D_A^{-1} and C = D_C Z_e D_C^{-1} (see `subdiagonal`) the matrix between the scalings,

    M' = D_A^{-1} M D_C^{-1} = sum_i K(Z_f, g_i) K(Z_e, h_i)^T,      g = G / P_A,  h = H / P_C,

needs linear convolutions, FFTs of length 2n, because f and e are not 1 and -1. But Z_1 differs from Z_f,
and Z_{-1} from Z_e, by one entry each, so the displacement of M' with respect to that pair has only two
more terms, made of the last row and the last column of M'. With a = 1 - f, b = -1 - e,

    M' - Z_1 M' Z_{-1}^T = (1 - f e) G^T H + e_0 p^T + q e_0^T,
    p = -a Z_e row,   q = -b Z_f column - a b M'_{last, last} e_0,

and, as K(Z_{+-1}, e_0) is the identity, twice the matrix is

    2 M' = (1 - f e) sum_i K(Z_1, g_i) K(Z_{-1}, h_i)^T + K(Z_{-1}, p)^T + K(Z_1, q).

That is 2r + 4 FFTs of length n a vector instead of 2r + 2 of length 2n: a quarter less work at rank one,
nearly half at high rank. The constants are computed in float64 once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .fft import conjugate, contract_rank, is_fast_length
from .ring import Ring, ring, shift_krylov_matmul, shift_krylov_rmatmul
from .subdiagonal import convolution_scales

Side = tuple[Tensor, Tensor, Tensor]  # subdiagonal (n - 1,), corner (), start vectors (r, n)


class ClosedRings(NamedTuple):
    """M prepared: scalings, and spectra of (h_1 .. h_r, p) and of (g_1 .. g_r, q)."""

    P_A: Tensor
    P_C: Tensor
    forward: Ring  # of Z_1
    backward: Ring  # of Z_{-1}
    right: Tensor  # (r + 1, f), conjugated
    left: Tensor  # (r + 1, f)


def prepare(A: Side, C: Side, product: str = "auto") -> ClosedRings | None:
    """Prepare M = sum_i K(A, g_i) K(C, h_i)^T.

    None where M is not square, where its scales or its length forbid it, and below rank 4: on a CPU the
    additional small steps cost more there than the shorter FFTs save.
    """
    r, n = A[2].shape
    if C[2].shape[-1] != n or r < 4 or not is_fast_length(n):
        return None
    P_A, P_C = convolution_scales(A[0], product), convolution_scales(C[0], product)
    if P_A is None or P_C is None:
        return None
    dtype = torch.promote_types(P_A.dtype, P_C.dtype)
    (g, f), (h, e) = _scaled(A), _scaled(C)
    unit = torch.zeros(1, n, dtype=torch.float64, device=g.device)
    unit[:, -1:].fill_(1)
    column = shift_krylov_matmul(g, shift_krylov_rmatmul(h, unit, e, n), f)[0]
    row = shift_krylov_matmul(h, shift_krylov_rmatmul(g, unit, f, n), e)[0]
    a, b = 1 - f, -1 - e
    p = -a * _shifted(row, e)
    q = -b * _shifted(column, f)
    q = torch.cat((q[:1] - a * b * column[-1:], q[1:]))
    forward, backward = ring(n, n, 1), ring(n, n, -1)
    right = torch.cat((h, p.unsqueeze(0) / 2)).to(dtype)
    left = (torch.cat(((1 - f * e) * g, q.unsqueeze(0))) / 2).to(dtype)
    return ClosedRings(
        P_A.to(dtype),
        P_C.to(dtype),
        forward,
        backward,
        conjugate(backward.analyse(right)),
        forward.analyse(left),
    )


def _scaled(side: Side) -> tuple[Tensor, Tensor]:
    """The start vectors over the scales, and the corner that they leave, in float64."""
    s, corner, V = (t.double() for t in side)
    P = torch.cat((s.new_ones(1), s.cumprod(-1)))
    return V / P, corner * P[-1]


def _shifted(v: Tensor, f: Tensor) -> Tensor:
    """Z_f v."""
    return torch.cat((f * v[-1:], v[:-1]))


def matmul(K: ClosedRings, x: Tensor) -> Tensor:
    """M x for prepared M: (b, n) to (b, n), in the dtype of `x`."""
    scaled = x * K.P_C
    z = K.backward.fold(K.backward.unfold(scaled).unsqueeze(-2) * K.right)
    inner = torch.cat((z[:, :-1], scaled.unsqueeze(1)), 1)
    y = K.forward.synthesise(contract_rank(K.forward.analyse(inner), K.left)) + z[:, -1]
    return (y * K.P_A).to(x.dtype)
