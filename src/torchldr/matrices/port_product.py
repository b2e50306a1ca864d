"""The product of a layer by ports: both operators of an LDR-TD matrix, scaled.

sum_t A^t g (C^t h)^T x with A / gamma_A and C / gamma_C in place of A and C, and weights
(gamma_A gamma_C)^t between the two products (`functional.port_choice` says how the scales are found).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..functional.port import PortPlan, port_matmul, port_rmatmul
from ..functional.tridiagonal import Operator


def port_product(
    A: Operator, C: Operator, x: Tensor, log_scales: tuple[float, float], oversampling: tuple[int, int]
) -> Tensor:
    """sum_i K_k(A, g_i) K_k(C, h_i)^T x, k = min(m, n), by ports.

    Args:
        A, C: lower, diagonal, upper and start vectors, (m,) thrice and (r, m) for A, likewise n for C.
        x: vectors, shape (b, n).
        log_scales: log gamma of A and of C.
        oversampling: c of A and of C.

    Returns:
        Shape (b, m), in the dtype of `x` (float32 or float64). Differentiable in every tensor.

    The same, slowly: `tridiagonal.product(A, C, x)`.
    """
    k = min(A[3].shape[-1], C[3].shape[-1])
    A, C = (_scaled(operator, scale) for operator, scale in zip((A, C), log_scales, strict=True))
    z = port_rmatmul(*C, x, k, oversampling=oversampling[1])
    weights = _weights(sum(log_scales), k, x)
    return port_matmul(*A, z if weights is None else z * weights, oversampling=oversampling[0])


class PreparedPorts:
    """`port_product` for fixed operators, (b, n) to (b, m): the series that do not depend on x are kept."""

    @torch.no_grad()
    def __init__(
        self, A: Operator, C: Operator, log_scales: tuple[float, float], oversampling: tuple[int, int]
    ) -> None:
        k = min(A[3].shape[-1], C[3].shape[-1])
        A, C = (_scaled(operator, scale) for operator, scale in zip((A, C), log_scales, strict=True))
        self.left = PortPlan(*A, k, oversampling=oversampling[0])
        self.right = PortPlan(*C, k, oversampling=oversampling[1])
        self.weights = _weights(sum(log_scales), k, C[3])

    def __call__(self, x: Tensor) -> Tensor:
        z = self.right.rmatmul(x)
        return self.left.matmul(z if self.weights is None else z * self.weights)


def _scaled(operator: Operator, log_scale: float) -> Operator:
    if log_scale == 0:
        return operator
    lower, diagonal, upper, V = operator
    factor = math.exp(-log_scale)
    return lower * factor, diagonal * factor, upper * factor, V


def _weights(rate: float, k: int, like: Tensor) -> Tensor | None:
    """e^{rate t} for t < k, or None where all are 1."""
    if abs(rate) * k < 1e-12:
        return None
    steps = torch.arange(k, dtype=torch.float64, device=like.device)
    return (rate * steps).exp().to(like.dtype)
