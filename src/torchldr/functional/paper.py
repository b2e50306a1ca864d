"""The paper's Algorithm 1: Krylov products of a subdiagonal operator by polynomial divide and conquer.

Kept beside our products (`subdiagonal`, `split`) as a reference and for comparison. For a block of
consecutive indices let R = (I - XA)^{-1}; the algorithm carries four polynomials a block,

    S00 = u^T R v    S01 = u^T R e_1    S10 = e_last^T R v    S11 = e_last^T R e_1

and joins two neighbours, coupled by one subdiagonal entry a, by products times aX (Thomas et al. 2018,
Algorithm 1). As the paper advises it runs breadth first from the leaves; S11 is a monomial and
multiplies by a shift; S00 is needed only as a sum over all blocks of a level, taken in the frequency
domain before one inverse FFT. Operators have no corner here and m is a power of two.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def krylov_transpose_reference(s: Tensor, V: Tensor, u: Tensor) -> Tensor:
    """K(A, v_i)^T u for every i, by the paper's Algorithm 1.

    Args:
        s: subdiagonal, shape (m - 1,), m a power of two.
        V: start vectors, shape (r, m).
        u: vectors, shape (b, m).

    Returns:
        Shape (b, r, m). 3 batched FFTs a level: O((b + r) m log^2 m + b r m log m) work.

    The same, slowly: `u @ krylov_reference(subdiagonal_reference(s, 0), v, m)`.
    """
    m = V.shape[-1]
    if m & (m - 1):
        raise ValueError(f"krylov_transpose_reference: m must be a power of two, got {m}.")
    total = torch.einsum("bi,ri->br", u, V).unsqueeze(-1)  # S00 of all blocks, summed
    S01, S10 = u.unsqueeze(-1), V.unsqueeze(-1)  # (b, blocks, size), (r, blocks, size)
    through = s.new_ones(m)  # S11 is the monomial through * X^{size - 1}
    size = 1
    while size < m:
        a = s[size - 1 :: 2 * size].unsqueeze(-1)  # the entries between the pairs
        right = torch.fft.rfft(S01[:, 1::2], 2 * size)
        left = torch.fft.rfft(a * S10[:, 0::2], 2 * size)
        joined = torch.fft.irfft(torch.einsum("bpf,rpf->brf", right, left), 2 * size)
        joined = joined.roll(1, -1)  # times X; the last coefficient is zero, so nothing wraps
        total = pad(total, (0, size)) + joined
        low, high = through[0::2].unsqueeze(-1), through[1::2].unsqueeze(-1)
        S01 = torch.cat((S01[:, 0::2], a * low * S01[:, 1::2]), -1)
        S10 = torch.cat((S10[:, 1::2], a * high * S10[:, 0::2]), -1)
        through = (a * low * high).squeeze(-1)
        size *= 2
    return total


def krylov_multiply_reference(s: Tensor, V: Tensor, w: Tensor) -> Tensor:
    """sum_i K(A, v_i) w_i, from Algorithm 1 by the transposition principle.

    The product with the transpose is linear in u; its derivative at u = 0 in the direction of w is the
    product wanted (the paper's Proposition on transposition).

    Args:
        s: subdiagonal, shape (m - 1,), m a power of two.
        V: start vectors, shape (r, m).
        w: coefficients, shape (b, r, m).

    Returns:
        Shape (b, m).
    """
    u = w.new_zeros(w.shape[0], V.shape[-1])
    pullback = torch.func.vjp(lambda u: krylov_transpose_reference(s, V, u), u)[1]
    return pullback(w)[0]
