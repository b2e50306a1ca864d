"""Rescaling of sums to few bits: a multiplier and a shift with one rounding, in C and bit for bit in torch.

    y = clamp(floor((sum + bias) multiplier / 2^shift + 1/2) + zero)

as the TFLite specification has it for fully connected layers (with a single rounding).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ....core.storage import INT8, rounded

LARGEST = 2**31 - 1
MOST_BIAS = 2.0**26  # in units of a sum
STEPS = 32  # multipliers in an octave
GRID = (2.0 ** (31 - torch.arange(1, STEPS + 1).double() / STEPS)).round().long()
ROOM = 2.0**28  # of rescaled sums: the C multiplies them by up to 8 in 32 bits


class Format(NamedTuple):
    """Integers that stand for numbers: value = scale (integer - zero), from low to high."""

    scale: float
    zero: int = 0
    low: int = -128
    high: int = 127

    @property
    def bits(self) -> int:
        return 8 if self.low >= -128 and self.high <= 127 else 16

    def integers(self, x: Tensor) -> Tensor:
        """The nearest integers; out of range they saturate. NaN becomes the lowest."""
        made = (x.double() / self.scale + self.zero + 0.5).floor()
        return made.nan_to_num(nan=self.low).clamp(self.low, self.high).long()

    def values(self, q: Tensor) -> Tensor:
        return (self.scale * (q.double() - self.zero)).float()


def eight_bits(low: float, high: float) -> Format:
    """Int8 for numbers from low to high and for 0, which is exact."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / 255
    return Format(scale, max(-128, min(127, round(-128 - low / scale))))


def rounded_rows(weight: Tensor, bias: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """A weight in int8 with a scale for each row along the first axis, both in float64.

    Rows of zeros may have any scale and get the smallest of the others. A row so small that its bias would
    not fit into 32 bits gets a scale for which the bias fits. `scale` is that of the input.
    """
    weight = weight.detach().cpu()
    made = rounded(weight, INT8)
    integers, scales = made.integers.double(), made.scale.double().flatten()
    zero = integers.flatten(1).abs().amax(1) == 0
    if bool(zero.any()) and not bool(zero.all()):
        scales[zero] = scales[~zero].min()
    if bias is not None:
        least = bias.detach().cpu().double().abs() / (scale * MOST_BIAS)
        if bool((small := scales < least).any()):
            scales[small] = least[small]
            shape = (-1, *[1] * (weight.ndim - 1))
            integers[small] = (weight[small].double() / scales[small].reshape(shape)).round()
    return integers, scales


class Rescaling(NamedTuple):
    """Of sums (.., rows): all tensors are int64, of one entry or one a row."""

    multipliers: Tensor
    shifts: Tensor
    bias: Tensor | None
    format: Format
    factors: bool = False  # multipliers are of 16 bits, behind which the C adds 16 zeros
    codes: Tensor | None = None  # of 8 bits, where multipliers are of the grid: steps behind the least shift

    def __call__(self, sums: Tensor) -> Tensor:
        sums = sums.long() + (0 if self.bias is None else self.bias)
        rounded = (sums * self.multipliers + (1 << (self.shifts - 1))) >> self.shifts
        return (rounded + self.format.zero).clamp(self.format.low, self.format.high)


def _multiplier(q: float) -> tuple[int, int]:
    """q as an integer below 2^31 over a power of two."""
    if q == 0:
        return 0, 33
    shift = min(31 - math.frexp(q)[1], 62)
    return min(round(math.ldexp(q, shift)), LARGEST), shift


def on_grid(least: Tensor, out: Format) -> Rescaling | None:
    """A rescaling by the smallest powers of 2^(1/32) that are no less than these, float64, one a row.

    Each is a code of 8 bits: a place in `GRID`, and how much further to shift. Rows too small for such a code
    get the smallest. None if the largest is out of range.
    """
    largest = least.max().item()
    if not 2.0**-24 < largest < 0.5:
        return None
    steps = (-STEPS * least.clamp(min=largest * 2.0**-9).log2()).floor().long() - 1  # 0 is 2^(-1/32)
    first = int(steps.min()) // STEPS
    codes = (steps - first * STEPS).clamp(max=255)
    return Rescaling(GRID[codes % STEPS], 31 + first + codes // STEPS, None, out, codes=codes)


def rescaling(q: Tensor, bias: Tensor | None, out: Format, bound: float, exact: bool = False) -> Rescaling:
    """A rescaling by q, one number or one a row.

    Args:
        q: float64.
        bias: int64, or None.
        out: what comes out.
        bound: of the sums, bias included.
        exact: rows get 32 bits each and not 16 bits with a shared shift.

    Raises:
        OverflowError: a sum, or a rescaled sum, may leave 32 bits.
    """
    if bound >= 2.0**31 or bound * q.abs().max().item() >= ROOM:
        raise OverflowError(f"sums of up to {bound:.3g} times {q.abs().max().item():.3g} leave 32 bits")
    q = q.double().flatten()
    if bool((q == q[0]).all()):
        q = q[:1]
    largest = q.abs().max().item()
    if q.numel() == 1 or exact or bool((q.abs() < largest / 256).any()):
        made = [_multiplier(v) for v in q.tolist()]
        multipliers, shifts = (torch.tensor(part) for part in zip(*made, strict=True))
        return Rescaling(multipliers, shifts, bias, out)
    shift = min(15 - math.frexp(largest)[1], 46)
    factors = (q * 2.0**shift).round().clamp(-32767, 32767).long()
    return Rescaling(factors << 16, torch.tensor([shift + 16]), bias, out, True)
