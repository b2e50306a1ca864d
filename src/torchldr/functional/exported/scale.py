"""The common scale of two operators, which does not change their matrix.

    sum_l (A / t)^l g ((t C)^l h)^T = sum_l A^l g (C^l h)^T

Training drifts along it. Products that compute powers of A and of C separately remove the scale first;
otherwise they would overflow.
"""

from __future__ import annotations

import math

from torch import Tensor

from ..subdiagonal.guard import Side


def common_scale(A: Tensor, C: Tensor) -> float:
    """The t for which A / t and t C are of one size.

    Size is the geometric mean, over rows, of the sum of absolute values; rows of zeros do not count.

    Args:
        A, C: the entries of the operators, (rows, entries of a row).

    Returns:
        t, positive; 1 where an operator is zero or not finite.
    """
    logs = []
    for X in (A, C):
        sums = X.detach().double().abs().sum(-1)
        logs.append(sums[sums > 0].log().mean().item())
    t = math.exp((logs[0] - logs[1]) / 2) if all(map(math.isfinite, logs)) else 1.0
    return t if 0 < t < math.inf else 1.0


def balanced(A: Side, C: Side) -> tuple[Side, Side, float]:
    """Subdiagonal operators without their common scale, and that scale.

    A corner does not count: it is passed once at most in min(m, n) powers.
    """
    t = common_scale(A[0].unsqueeze(-1), C[0].unsqueeze(-1))
    return _times(A, 1 / t), _times(C, t), t


def _times(side: Side, factor: float) -> Side:
    s, corner, V = side
    return (s.double() * factor).to(s.dtype), (corner.double() * factor).to(s.dtype), V


def balanced_rings(A: Tensor, C: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Rings of operators in float64, without their common scale where k powers of it would be large."""
    t = common_scale(A, C)
    if abs(math.log2(t)) * k <= _BITS:
        return A, C
    return A.double() / t, C.double() * t


_BITS = 32  # of a common scale's last power: a float32 holds four times as many
