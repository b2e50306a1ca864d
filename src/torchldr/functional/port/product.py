"""The port product: Krylov products of a tridiagonal operator with corners in near-linear time.

The operator is a ring as in `tridiagonal`, (A x)_i = lower_i x_{i-1} + diagonal_i x_i + upper_i x_{i+1}.
Views of what is computed, K_k(A, v)^T u:

    matrix      the numbers u^T A^t v, t < k
    series      u^T (I - zA)^{-1} v up to z^{k-1}
    system      what a sensor u hears in k steps after the line was struck by v

A block of consecutive indices meets the rest of the line only at its first and last index, its two ports.
With R = (I - zA)^{-1} for the block alone, eight series in z say all that the outside can notice:

    LL = e_L^T R e_L    LR = e_L^T R e_R    RL = e_R^T R e_L    RR = e_R^T R e_R
    vL = e_L^T R v      vR = e_R^T R v      uL = u^T R e_L      uR = u^T R e_R

Two neighbours join into one block by pointwise arithmetic (`levels`), where every path crosses the cut from
the left, from the right, or back and forth any number of times. Series are held by N coefficients, N = c m
for blocks of m indices: a join transforms to 2N roots of unity, where 2N coefficients of the joined block
come out. What rings on after N steps folds back onto the first coefficients: that is the only error besides
rounding, and `acceptance` bounds both for a layer. u^T R v is needed only as a sum over a level, before the
inverse transform.

Any length: n indices are dealt to 2^levels leaves whose sizes differ by one at most; a leaf that is shorter
by one gets an index that is coupled to nothing, behind its right port, which changes no series. The corners
close the ring at the top (`close`), on series cut to k coefficients and at a radius below 1, so that a ring
without loss, whose poles lie on the unit circle, is served too.

In other modules:

    series              leaves and closing in torch operations that autograd follows
    levels              and one level, up for rows and down for their transpose
    plan                the product for a fixed operator, without gradients: what inference keeps
    sweep               its passes over all levels by torch, with kernels from `kernels.cuda.port` on a GPU;
                        `compiled` by compiled loops on a CPU
    layer               the product of a layer, scaled
    acceptance          the bound on its error, with `rounding`

The tests hold the products and their gradients to `krylov_of_ring_reference`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import levels, series
from .plan import PortPlan
from .sweep import Closing

__all__ = ["PortPlan", "port_matmul", "port_rmatmul"]


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
    times, under vmap, jvp and a compiler. For a fixed operator a `PortPlan` takes a tenth of the time.

    The same, slowly: `krylov_of_ring_reference(lower, diagonal, upper, v, k).mT @ u`.
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

    The same, slowly: `sum(krylov_of_ring_reference(lower, diagonal, upper, v, k) @ w)`.
    """
    if w.dim() != 3 or V.dim() != 2 or w.shape[1] != V.shape[0] or w.dtype != V.dtype:
        raise ValueError(
            "port_matmul: w must be (b, r, k) with one row for each of the start vectors V (r, n), in their "
            f"dtype, got {tuple(w.shape)} in {w.dtype} and {tuple(V.shape)} in {V.dtype}."
        )

    def transposed(U: Tensor) -> Tensor:
        return port_rmatmul(lower, diagonal, upper, V, U, w.shape[-1], oversampling=oversampling)

    return torch.func.vjp(transposed, V.new_zeros(w.shape[0], V.shape[-1]))[1](w)[0]
