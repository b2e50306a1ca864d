"""The guard of the convolutions: whether a layer's operators may be divided by their scales.

For a layer y = sum_i K(A, g_i) K(C, h_i)^T x the convolutions compute with g / P_A and h / P_C and
multiply by P_C before and by P_A after. An FFT's error is relative to the largest input entry, not to each
entry. So the second operator may magnify entries in which the first one has lost its digits. The error is at
most

    c eps R_A R_C log2(n) |g| |h| |x|,    R = max|P| / min|P| max(1, |f|),  f = c P_{m-1},

so the guard limits the product of both ranges. (Each range alone is not enough: with P_C = 1 / P_A the layer
may be the identity while both convolutions work with numbers that differ by R.) The limit is 2^5 in the dtype
of the layer, which loses at most five bits. For a float32 layer it is 2^30 with convolutions in float64.

A times f and C over f give the same product, and training drifts along that direction. So the guard first
removes the common scale: f splits the growth between both, the logarithms of the geometric means in the ratio
n^2 to m^2. For square matrices both then have equal means; otherwise the shorter operator may grow faster.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...kernels.cpu import convolution, library

# Of an operator: subdiagonal (m - 1,), corner () or (1,), start vectors (r, m).
Side = tuple[Tensor, Tensor, Tensor]

RANGE = 2.0**5  # of convolutions in the dtype of the layer
RANGE_FLOAT64 = 2.0**30  # of convolutions in float64 for a layer in float32


def scales(s: Tensor) -> Tensor:
    """P_0 = 1, P_i = s_1 .. s_i, shape (..., m)."""
    return torch.cat((s.new_ones(*s.shape[:-1], 1), s.cumprod(-1)), -1)


def common_scale(a: Tensor, c: Tensor) -> Tensor:
    """What to multiply A by and to divide C by, (..., 1), float64: see above. Zeros do not count."""
    (of_a, m), (of_c, n) = ((_mean_log(s), s.shape[-1] + 1) for s in (a, c))
    return torch.exp2((of_a + of_c) * (n * n / (m * m + n * n)) - of_a)


def _mean_log(s: Tensor) -> Tensor:
    size = s.detach().double().abs()
    counts = (size > 0) & size.isfinite()
    logs = torch.where(counts, size, 1.0).log2().sum(-1, keepdim=True)
    return logs / counts.sum(-1, keepdim=True).clamp(min=1)


def guard(A: Side, C: Side) -> torch.dtype | str:
    """The dtype in which convolutions are right, or the reason why they are right in none.

    Operators of a stack have axes in front, and the widest range decides. Reads the values: on a GPU this
    waits for the device.
    """
    (a, corner_A, G), (c, corner_C, H) = A, C
    if a.ndim == 1 and library.serves(a, c, corner_A, corner_C):
        corner_A, a, corner_C, c = (t.contiguous() for t in (corner_A, a, corner_C, c))
        *_, ranges, _ = convolution.profiles(corner_A, a, corner_C, c, len(a) + 1, len(c) + 1)
        return precision(ranges.item(), A[0].dtype)
    a, corner_A, c, corner_C = (t.detach().double() for t in (a, corner_A, c, corner_C))
    factor = common_scale(a, c)
    of_corner = factor.reshape(corner_A.shape)
    found = reach((a * factor, corner_A * of_corner, G), (c / factor, corner_C / of_corner, H))
    return precision(found, A[0].dtype)


def precision(reach: float, dtype: torch.dtype) -> torch.dtype | str:
    """In which dtype operators of this range and dtype may be convolved, or why in none."""
    if reach <= RANGE:
        return dtype
    limit = RANGE_FLOAT64 if dtype == torch.float32 else RANGE
    if reach <= limit:
        return torch.float64
    shown = "over all bounds" if not math.isfinite(reach) else f"over a factor of {reach:.1e}"
    return f"the subdiagonals' products range {shown}, more than {limit:.1e}"


def reach(A: Side, C: Side) -> float:
    """The range R_A R_C of both operators as they are, the widest of a stack.

    Infinite where 0 or NaN is among them.
    """
    return _range(*A[:2]) * _range(*C[:2])


def _range(s: Tensor, corner: Tensor) -> float:
    P = scales(s.detach().double())
    size, f = P.abs(), corner.detach().reshape(P.shape[:-1]) * P[..., -1]
    found = size.amax(-1) / size.amin(-1) * f.abs().clamp(min=1)
    return float(torch.nan_to_num(found, nan=math.inf, posinf=math.inf).amax())
