"""Constant square matrices by pairs of circulant ones: tensors in, tensors out; `pair.h` has the formula."""

from __future__ import annotations

import torch
from torch import Tensor

from .library import Kernel
from .tables import scratch, tables
from .threads import in_parts

_pair = Kernel("ldr_pair", "ppppppp" + "iiiiii")


def product(scalings: Tensor, left: Tensor, right: Tensor, x: Tensor, *, transposed: bool = False) -> Tensor:
    """M x, or M^T x, for one matrix or a stack, whose axes come first.

    Args:
        scalings: enter, beside, between, leave and aside, shape (.., 5, n).
        left, right: spectra, shape (.., r + 1, n).
        x: vectors, shape (.., b, n), n a power of two from 32 on.

    Returns:
        Shape (.., b, n). 2r + 4 complex FFTs of length n / 2 a vector.
    """
    (r, n), dtype = left.shape[-2:], x.dtype
    total = x.numel() // n
    b = total * r * n // left.numel()
    y, turns = torch.empty_like(x), tables(n // 2, dtype)

    def rows(start: int, stop: int) -> None:
        room = scratch(5 * n, dtype)
        _pair(dtype, x, y, scalings, left, right, turns, room, b, n, r - 1, int(transposed), start, stop)

    in_parts(total, r * n, rows)
    return y
