"""Storage of weights in few bits: integers with a scale, and for operators an offset.

    value = offset + scale * integer

Generators and dense weights are int8 with a scale for each vector or row, operators int16 around one or zero
with a scale for each operator. Tensors that are sensitive to rounding (nodes, corners, biases) stay float32.
`StructuredMatrix.stored` lists a class's exceptions from int8. The C export and `torchldr.quantize_` both use
the function here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Storage(NamedTuple):
    """The stored dtype of a tensor, and the offset of its integers."""

    dtype: torch.dtype
    offset: float = 0.0

    @property
    def largest(self) -> int:
        """The largest integer in use; its negative is the smallest."""
        return torch.iinfo(self.dtype).max


INT8 = Storage(torch.int8)
AROUND_ONE = Storage(torch.int16, 1.0)
AROUND_ZERO = Storage(torch.int16)
FLOAT = Storage(torch.float32)


class Rounded(NamedTuple):
    """A tensor in integers: `offset + scale * integers`. Shared axes of the scale have size 1."""

    scale: Tensor
    integers: Tensor
    offset: float = 0.0

    def value(self) -> Tensor:
        wide = torch.promote_types(self.scale.dtype, torch.float32)
        scaled = self.integers.to(wide) * self.scale
        return (scaled + self.offset if self.offset else scaled).to(self.scale.dtype)


def _scale_shape(shape: tuple[int, ...], storage: Storage, lead: int) -> tuple[int, ...]:
    """A scale for each place of the leading axes and, for int8, for each vector: along the first axis."""
    kept = lead + 1 if storage.dtype == torch.int8 and len(shape) - lead > 1 else lead
    return tuple(size if axis < kept else 1 for axis, size in enumerate(shape))


def rounded(t: Tensor, storage: Storage = INT8, lead: int = 0) -> Rounded:
    """Round a tensor to integers.

    Args:
        t: floating point; `lead` axes in front count matrices, such as the gates of a recurrent layer.
        storage: int8 or int16.
        lead: how many axes are in front of the tensor's own.

    Returns:
        Integers of the tensor's shape, and a scale in its dtype (at least float32). The largest entry of each
        vector, less the offset, becomes the largest integer. No entry moves by more than half the scale, up
        to rounding in the dtype.
    """
    limits, narrow = torch.finfo(t.dtype), t.dtype
    t = t.detach().to(torch.promote_types(narrow, torch.float32)) - storage.offset
    shape = _scale_shape(tuple(t.shape), storage, lead)
    axes = [axis for axis, size in enumerate(shape) if size != t.shape[axis]]
    largest = t.abs().amax(axes, keepdim=True) if t.numel() and axes else t.abs()
    scale = largest.reshape(shape) if t.numel() else t.new_ones(shape)
    above = 0.5 * limits.tiny * limits.eps  # among the smallest numbers it is rounded up, and none to zero
    scale = torch.where(scale > 0, scale / storage.largest + above, torch.ones_like(scale)).to(narrow)
    integers = (t / scale).round().clamp(-storage.largest, storage.largest)
    return Rounded(scale, integers.to(storage.dtype), storage.offset)


def straight_through(t: Tensor, storage: Storage = INT8, lead: int = 0) -> Tensor:
    """The rounded values with the gradient of the tensor itself, for quantisation-aware training."""
    if storage.dtype == torch.float32:
        return t
    return t + (rounded(t, storage, lead).value() - t.detach())


def stored_bytes(shape: tuple[int, ...], storage: Storage = INT8, lead: int = 0) -> int:
    """The bytes of a tensor of this shape in this storage, including its scales in float32.

    >>> stored_bytes((4, 784)), stored_bytes((783,), AROUND_ONE), stored_bytes((10,), FLOAT)
    (3152, 1570, 40)
    """
    count = math.prod(shape)
    if storage.dtype == torch.float32:
        return 4 * count
    return storage.dtype.itemsize * count + 4 * math.prod(_scale_shape(shape, storage, lead))
