"""The port product and its transpose in torch operations, differentiable any number of times."""

from __future__ import annotations

import torch
from torch import Tensor

from . import levels, series
from .sweep import Closing


def port_rmatmul(
    lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, U: Tensor, k: int, *, oversampling: int = 4
) -> Tensor:
    """Multiply by transposed Krylov matrices: K_k(A, v_i)^T u_b for every i and b.

    Args:
        lower, diagonal, upper: the ring of coefficients, shape (n,) each; corners at lower[0] and upper[-1].
        V: start vectors, shape (r, n).
        U: vectors, shape (b, n).
        k: how many columns, any number from 1.
        oversampling: c, a power of two from 2: coefficients kept for every index of a full block.

    Returns:
        Shape (b, r, k), in the common dtype (float32 or float64).

    O(c (b + r) n log^2 n + c b r n log n) work, O(c (b + r) n) memory a level. Right to rounding where blocks
    forget within c times their length. Operations of torch: differentiable in every tensor, any number of
    times, under vmap, jvp and a compiler. For a fixed operator a `PortPlan` takes much less time.

    The same, slowly: the numbers u_b^T A^t v_i, t < k.
    """
    series.check(lower, diagonal, upper, V, U, k, oversampling)
    layout, N = series.laid_out(V.shape[-1], series.LEAF, V.device), oversampling * series.LEAF
    every = series.roots(N << len(layout.cuts), V)
    Z, u, result = series.leaves(lower, diagonal, upper, V, U, layout, N)
    result = series.lengthened(result, k)
    for at in layout.cuts:
        N *= 2
        cut, at_cut = levels.cuts(Z, lower[at], upper[at - 1], every[:: len(at)]), levels.rows_at_cut(u)
        B = levels.arriving(cut)
        result = result + series.lengthened(torch.fft.irfft(levels.heard(at_cut, B), n=N), k)
        Z, u = levels.columns_up(Z, cut, B), levels.rows_up(u, at_cut, B)
    return result + Closing(Z[:, :, 0], lower[0], upper[-1], k).add(u[:, :, 0])


def port_matmul(
    lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, w: Tensor, *, oversampling: int = 4
) -> Tensor:
    """Multiply by Krylov matrices: sum_i K_k(A, v_i) w_i.

    Args:
        lower, diagonal, upper, V, oversampling: as for `port_rmatmul`.
        w: coefficients, shape (b, r, k).

    Returns:
        Shape (b, n). The transpose of `port_rmatmul`, at its cost, with its rules.

    The same, slowly: the sum over i and t of w_bit A^t v_i.
    """
    if w.dim() != 3 or V.dim() != 2 or w.shape[1] != V.shape[0] or w.dtype != V.dtype:
        raise ValueError(
            "port_matmul: w must be (b, r, k) with one row for each of the start vectors V (r, n), in their "
            f"dtype, got {tuple(w.shape)} in {w.dtype} and {tuple(V.shape)} in {V.dtype}."
        )

    def transposed(U: Tensor) -> Tensor:
        return port_rmatmul(lower, diagonal, upper, V, U, w.shape[-1], oversampling=oversampling)

    return torch.func.vjp(transposed, V.new_zeros(w.shape[0], V.shape[-1]))[1](w)[0]
