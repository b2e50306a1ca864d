"""The product of an LDR-TD layer by ports: both operators, scaled so that errors suit every input.

M x = sum_t A^t g (C^t h)^T x is two products, z_t = (C^t h)^T x and sum_t A^t g z_t. What FFTs get wrong in
z is spread evenly over t and over the entries of x, so the two are scaled to make even errors harmless:

    A / gamma                       gamma is the mean growth of |A^t g|
    gamma / delta D^-1 C D, D x     D_j = d_j is what column j of |factors| amounts to, and delta the growth
                                    that is left then: a ring may grow at each turn (see `acceptance`)

with weights delta^t for z_t. An error e of z_t is then one of |A^t g| gamma^-t delta^t e in the result, and
that of a small column is small. Products run in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..tridiagonal import Operator
from .plan import PortPlan


class Scaling(NamedTuple):
    """How the operators of a layer are scaled."""

    rate: float  # log gamma
    left: float  # log delta
    sizes: Tensor  # (n,): d, all positive
    seen: Tensor  # (n,): whether an entry of x matters at all

    def of(self, A: Operator, C: Operator) -> tuple[Operator, Operator]:
        """The scaled operators, in float64."""
        gamma, ratio, d = math.exp(self.rate), math.exp(self.rate - self.left), self.sizes
        lower, diagonal, upper, G = (x.double() for x in A)
        left = lower / gamma, diagonal / gamma, upper / gamma, G
        lower, diagonal, upper, H = (x.double() for x in C)
        d_before, d_after = d.roll(1), d.roll(-1)
        right = ratio * lower * d_before / d, ratio * diagonal, ratio * upper * d_after / d, H / d
        return left, right

    def weights(self, k: int) -> Tensor:
        """delta^t, t < k."""
        return (self.left * torch.arange(k, dtype=torch.float64, device=self.sizes.device)).exp()


class PreparedPorts:
    """sum_i K_k(A, g_i) K_k(C, h_i)^T x for fixed operators, (b, n) to (b, m), by ports in float64.

    Args:
        A, C: lower, diagonal, upper and start vectors, (m,) thrice and (r, m) for A, likewise n for C.
        scaling: of both.
        oversampling: of both plans.

    Any dtype in, the same out; no gradients. The same, slowly: `tridiagonal.product(A, C, x)`.
    """

    @torch.no_grad()
    def __init__(self, A: Operator, C: Operator, scaling: Scaling, oversampling: int) -> None:
        k = min(A[3].shape[-1], C[3].shape[-1])
        left, right = scaling.of(A, C)
        self.oversampling = oversampling
        self.left = PortPlan(*left, k, oversampling=oversampling)
        self.right = PortPlan(*right, k, oversampling=oversampling)
        self._sizes, self._seen, self.weights = scaling.sizes, scaling.seen, scaling.weights(k)

    def __call__(self, x: Tensor) -> Tensor:
        return self.of_scaled(torch.where(self._seen, x.double() * self._sizes, 0)).to(x.dtype)

    def of_scaled(self, x: Tensor) -> Tensor:
        """For D x, in float64."""
        return self.left.matmul(self.right.rmatmul(x) * self.weights)

    def transposed_to_scaled(self, y: Tensor) -> Tensor:
        """The transpose of `of_scaled`, (b, m) to (b, n)."""
        return self.right.matmul(self.left.rmatmul(y) * self.weights)


class Costs(NamedTuple):
    """Nanoseconds on a device, for each operator.

    Kept ports take start + (c + 1.5) n log2(n) b (vector + rank r) for b vectors, a stencil n k r (column +
    entry b).
    """

    start: float
    vector: float
    rank: float
    column: float
    entry: float


COSTS = {"cpu": Costs(5e5, 8, 3, 1.25, 0.06), "cuda": Costs(2.2e6, 0.03, 0.01, 0.2, 0.0005)}


def port_seconds(sizes: Sequence[int], r: int, b: int, oversampling: int, device: str) -> float:
    """What b vectors cost by `PreparedPorts`, by a simple model."""
    costs = COSTS[device]
    work = sum((oversampling + 1.5) * n * math.log2(max(n, 2)) for n in sizes)
    return 1e-9 * (2 * costs.start + work * b * (costs.vector + costs.rank * r))


def stencil_seconds(sizes: Sequence[int], r: int, b: int, device: str) -> float:
    """What they cost by the stencil."""
    costs = COSTS[device]
    return 1e-9 * sum(sizes) * min(sizes) * r * (costs.column + costs.entry * b)
