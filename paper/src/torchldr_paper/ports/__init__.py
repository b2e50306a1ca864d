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

Two neighbours join into one block by pointwise arithmetic (`levels`): every path crosses the cut from the
left, from the right, or back and forth any number of times. A block of m indices keeps N = c m coefficients
of each series. A join transforms them to 2N roots of unity, and 2N coefficients of the joined block come out.
What rings on after 2N steps folds back onto the first coefficients: the only error besides rounding, and
nothing here bounds it. u^T R v is needed only as a sum over a level, before the inverse transform.

Any length: n indices are dealt to 2^levels leaves whose sizes differ by one at most. A leaf that is shorter
by one gets an index that is coupled to nothing, behind its right port, which changes no series. The corners
close the ring at the top (`series.close`), on series cut to k coefficients and at a radius below 1, so that a
ring without loss, whose poles lie on the unit circle, is served too.

    product     both products, differentiable any number of times
    plan        the same for a fixed operator, with everything kept that does not depend on the input
    series      leaves, and the closing of the ring
    levels      one level of the tree: up for rows, down for their transpose
    sweep       a plan's passes over all levels

The page docs/tridiagonal.md derives all this. The library itself multiplies by LDR-TD with a stencil.
"""

from __future__ import annotations

from .plan import PortPlan
from .product import port_matmul, port_rmatmul

__all__ = ["PortPlan", "port_matmul", "port_rmatmul"]
