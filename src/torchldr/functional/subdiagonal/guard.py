"""The guard of the convolutions: whether the operators of a layer may be divided by their scales.

For a layer y = sum_i K(A, g_i) K(C, h_i)^T x the convolutions compute with g / P_A and h / P_C and
multiply by P_C before and by P_A after. An FFT's error is relative to the largest entry that goes in, not
to each entry, so what the second operator magnifies may be what the first one has lost: the error is at
most

    c eps R_A R_C log2(n) |g| |h| |x|,    R = max|P| / min|P| max(1, |f|),  f = c P_{m-1},

and only the product of both ranges tells. (Each alone is not enough: with P_C = 1 / P_A the layer may be
the identity while both convolutions work with numbers that differ by R.) The range may be 2^5 in the
dtype of the layer: five bits are lost at most. For a float32 layer it may be 2^30 with convolutions in
float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ...kernels.cpu.arrays import as_array
from ...kernels.cpu.compiled import Loops, numbers, wide

# Of an operator: subdiagonal (m - 1,), corner () or (1,), start vectors (r, m).
Side = tuple[Tensor, Tensor, Tensor]

RANGE = 2.0**5  # of convolutions in the dtype of the layer
RANGE_FLOAT64 = 2.0**30  # of convolutions in float64 for a layer in float32


class Scales(NamedTuple):
    """P of both operators, in the dtype that convolutions compute in."""

    A: Tensor
    C: Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.A.dtype


def scales(s: Tensor) -> Tensor:
    """P_0 = 1, P_i = s_1 .. s_i, shape (..., m)."""
    return torch.cat((s.new_ones(*s.shape[:-1], 1), s.cumprod(-1)), -1)


def unseen_scales(A: Side, C: Side) -> Scales:
    """Those of both operators in float64, whatever their range: for callers that watch it themselves."""
    return Scales(*(scales(side[0].detach().double()) for side in (A, C)))


def guard(A: Side, C: Side) -> Scales | str:
    """The scales in a dtype in which convolutions are right, or the reason why they are not.

    Operators of a stack have axes in front, and the widest range decides. Reads the values: on a GPU this
    waits for the device.
    """
    dtype = A[0].dtype
    wide, narrow, reach = _scales(A, C)
    if reach <= RANGE:
        return narrow
    limit = RANGE_FLOAT64 if dtype == torch.float32 else RANGE
    if reach <= limit:
        return wide
    shown = "over all bounds" if not math.isfinite(reach) else f"over a factor of {reach:.1e}"
    return f"the subdiagonals' products range {shown}, more than {limit:.1e}"


def reach(A: Side, C: Side) -> float:
    """The range R_A R_C of both operators, which `RANGE` bounds; infinite where 0 or NaN is among them."""
    return _scales(A, C)[-1]


def _scales(A: Side, C: Side) -> tuple[Scales, Scales, float]:
    """P of both in float64 and in their dtype, and the range."""
    a, c = A[0].detach(), C[0].detach()
    if a.ndim == 1 and SCALES.serves(a, c):
        from ...kernels.cpu.convolution import scales as compiled_scales  # imports numba

        left, right = as_array(a.contiguous()), as_array(c.contiguous())
        *found, reach = compiled_scales(left, A[1].item(), right, C[1].item())
        P_A, P_C, narrow_A, narrow_C = map(torch.from_numpy, found)
        return Scales(P_A, P_C), Scales(narrow_A, narrow_C), reach if reach == reach else math.inf
    (P_A, reach_A), (P_C, reach_C) = _reach(A), _reach(C)
    return Scales(P_A, P_C), Scales(P_A.to(a.dtype), P_C.to(c.dtype)), float(reach_A * reach_C)


def _reach(side: Side) -> tuple[Tensor, Tensor]:
    """P in float64, and R."""
    s, corner = side[0].detach(), side[1].detach()
    P = scales(s.double())
    return P, ranges(P, corner.reshape(P.shape[:-1])).amax()


def ranges(P: Tensor, corner: Tensor) -> Tensor:
    """R for P (..., m) and corners (...); infinite where an entry is 0 or not finite."""
    size = P.abs()
    reach = size.amax(-1) / size.amin(-1) * (corner * P[..., -1]).abs().clamp(min=1)
    return torch.nan_to_num(reach, nan=math.inf, posinf=math.inf)


def _check_scales(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    from ...kernels.cpu.convolution import scales as compiled_scales

    sides = sample_side(9, dtype), sample_side(5, dtype)
    right = [_reach((wide(s), wide(corner), V)) for s, corner, V in sides]
    (a, corner_A, _), (c, corner_C, _) = sides
    *got, reach = compiled_scales(a.numpy(), corner_A.item(), c.numpy(), corner_C.item())
    yield from zip(map(torch.from_numpy, got), [P for P, _ in right] * 2, strict=True)
    yield torch.tensor(reach, dtype=torch.float64), right[0][1] * right[1][1]


SCALES = Loops("the range guard of LDR-SD", _check_scales)


def sample_side(m: int, dtype: torch.dtype) -> Side:
    """An operator and two start vectors for the checks of compiled loops."""
    s = 1 + numbers(m - 1, dtype=dtype) / 8
    return s, numbers(1, dtype=dtype)[0], numbers(2, m, dtype=dtype)
