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
from typing import NamedTuple

import torch
from torch import Tensor

from ...kernels.cpu import convolution, library

# Of an operator: subdiagonal (m - 1,), corner () or (1,), start vectors (r, m).
Side = tuple[Tensor, Tensor, Tensor]

RANGE = 2.0**5  # of convolutions in the dtype of the layer
RANGE_FLOAT64 = 2.0**30  # of convolutions in float64 for a layer in float32


class Scales(NamedTuple):
    """P of both operators, A times `factor` and C over it, in the dtype that convolutions compute in."""

    A: Tensor
    C: Tensor
    factor: Tensor | float = 1.0  # of every matrix of a stack, (.., 1), or a number

    @property
    def dtype(self) -> torch.dtype:
        return self.A.dtype

    def swapped(self) -> Scales:
        """For M^T."""
        return Scales(self.C, self.A, 1 / self.factor)


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


def balanced(A: Side, C: Side, factor: Tensor | float | None = None) -> tuple[Side, Side]:
    """The same product without the common scale of its operators, which are in float64 then; differentiable.

    Rounded to float32 they would have other products: errors of n entries add up.
    """
    (a, corner_A, G), (c, corner_C, H) = A, C
    a, corner_A, c, corner_C = (t.double() for t in (a, corner_A, c, corner_C))
    factor = common_scale(a, c) if factor is None else factor
    if isinstance(factor, Tensor):
        of_corner = factor.reshape(corner_A.shape)
        return (a * factor, corner_A * of_corner, G), (c / factor, corner_C / of_corner, H)
    return (a * factor, corner_A * factor, G), (c / factor, corner_C / factor, H)


def unseen_scales(A: Side, C: Side) -> Scales:
    """Those of both operators in float64, whatever their range: for callers that watch it themselves."""
    a, c = (side[0].detach().double() for side in (A, C))
    factor = common_scale(a, c)
    return Scales(scales(a * factor), scales(c / factor), factor)


def guard(A: Side, C: Side) -> Scales | str:
    """The scales in a dtype in which convolutions are right, or the reason why they are not.

    Operators of a stack have axes in front, and the widest range decides. Reads the values: on a GPU this
    waits for the device.
    """
    wide, reach = _scales(A, C)
    found = precision(reach, A[0].dtype)
    return found if isinstance(found, str) else Scales(wide.A.to(found), wide.C.to(found), wide.factor)


def precision(reach: float, dtype: torch.dtype) -> torch.dtype | str:
    """In which dtype operators of this range and dtype may be convolved, or why in none."""
    if reach <= RANGE:
        return dtype
    limit = RANGE_FLOAT64 if dtype == torch.float32 else RANGE
    if reach <= limit:
        return torch.float64
    shown = "over all bounds" if not math.isfinite(reach) else f"over a factor of {reach:.1e}"
    return f"the subdiagonals' products range {shown}, more than {limit:.1e}"


def _scales(A: Side, C: Side) -> tuple[Scales, float]:
    """P of both in float64, without their common scale, and the range R_A R_C."""
    (a, corner_A, _), (c, corner_C, _) = A, C
    if a.ndim == 1 and library.serves(a, c, corner_A, corner_C):
        m, n = len(a) + 1, len(c) + 1
        corner_A, a, corner_C, c = (t.contiguous() for t in (corner_A, a, corner_C, c))
        profile_A, profile_C, ranges, factors = convolution.profiles(corner_A, a, corner_C, c, m, n)
        return Scales(profile_A[:m], profile_C[:n], factors.item()), ranges.item()
    found = unseen_scales(A, C)
    sides = balanced(
        (a.detach().double(), corner_A.detach().double(), A[2]),
        (c.detach().double(), corner_C.detach().double(), C[2]),
    )
    return found, _range(found, *sides)


def reach(A: Side, C: Side) -> float:
    """The range R_A R_C of both operators as they are; infinite where 0 or NaN is among them."""
    P = Scales(*(scales(side[0].detach().double()) for side in (A, C)))
    return _range(P, A, C)


def _range(P: Scales, A: Side, C: Side) -> float:
    """The product of the ranges of both operators, the widest of a stack."""
    each = [ranges(p, side[1].detach().reshape(p.shape[:-1])).amax() for p, side in ((P.A, A), (P.C, C))]
    return math.prod(map(float, each))


def ranges(P: Tensor, corner: Tensor) -> Tensor:
    """R for P (..., m) and corners (...); infinite where an entry is 0 or not finite."""
    size = P.abs()
    reach = size.amax(-1) / size.amin(-1) * (corner * P[..., -1]).abs().clamp(min=1)
    return torch.nan_to_num(reach, nan=math.inf, posinf=math.inf)
