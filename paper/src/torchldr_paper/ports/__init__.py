"""The port product: Krylov products of a tridiagonal operator with corners in near-linear time.

The operator is a ring, (A x)_i = lower_i x_{i-1} + diagonal_i x_i + upper_i x_{i+1} with indices modulo n.
Three views of the result, K_k(A, v)^T u:

    matrix      the numbers u^T A^t v, t < k
    series      u^T (I - zA)^{-1} v up to z^{k-1}
    system      what a sensor u hears in k steps after the ring was struck by v

A block of consecutive indices meets the rest of the ring only at its first and last index, its two ports.
With R = (I - zA)^{-1} for the block alone, eight series in z say all that the outside can notice:

    LL = e_L^T R e_L    LR = e_L^T R e_R    RL = e_R^T R e_L    RR = e_R^T R e_R
    vL = e_L^T R v      vR = e_R^T R v      uL = u^T R e_L      uR = u^T R e_R

Two neighbours join into one block by pointwise arithmetic (`levels`): a path crosses the cut from the left,
from the right, or back and forth any number of times. A block of m indices keeps N = c m coefficients of
each series; c is the oversampling, a power of two. A join evaluates them at 2N roots of unity and gives 2N
coefficients of the joined block. u^T R v is needed only as a sum over a level, before the inverse transform.

The textbook way is a quotient of polynomials with det(I - zA) below. It fails in floating point: for 1024
indices with 1 below and 0.1 above the diagonal the determinant varies by a factor of 1e92 over the unit
circle, and an FFT keeps only what is large. The eight series are impulse responses: where A does not grow
they are bounded, and nothing cancels.

Errors. Coefficients after the first 2N fold back onto these. This is the only error besides rounding, and
nothing here bounds it. An echo crosses a block of m indices in m steps and fades if it loses something at
each end. Near shifts, c = 2 or 4 is enough. Where an index sends back as much as it sends on (a symmetric
operator), echoes do not fade and no c is enough. FFTs spread rounding evenly over all coefficients, so scale
the operator by the growth of its powers first, and use float64.

Cost: O(c (b + r) n log^2 n + c b r n log n) for b vectors and rank r; the stencil takes O((1 + b) r n^2).

Any length: n indices are dealt to 2^levels leaves whose sizes differ by one at most. A leaf that is shorter
by one gets an index that is coupled to nothing, behind its right port, which changes no series. The corners
close the ring at the top (`series.close`), on series cut to k coefficients and at a radius below 1, so that a
ring without loss, whose poles lie on the unit circle, is served too.

    product     both products, differentiable any number of times
    plan        the same for a fixed operator, with everything kept that does not depend on the input
    series      leaves, and the closing of the ring
    levels      one level of the tree: up for rows, down for their transpose
    sweep       a plan's passes over all levels

The library itself multiplies by LDR-TD with a stencil, which is right for every operator.
`benchmarks/port_speed.py` compares both.
"""

from __future__ import annotations

from .plan import PortPlan
from .product import port_matmul, port_rmatmul

__all__ = ["PortPlan", "port_matmul", "port_rmatmul"]
