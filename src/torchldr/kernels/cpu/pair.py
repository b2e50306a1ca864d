"""Products with constant square matrices by a pair of circulant ones: tensors in, tensors out; see
`pair.h`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .library import Kernel
from .tables import tables
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
    (*lead, r, n), dtype, total = left.shape, x.dtype, x.shape[:-1].numel()
    b = total // math.prod(lead)
    y, turns = torch.empty_like(x), tables(n // 2, dtype)

    def rows(start: int, stop: int) -> None:
        scratch = torch.empty(5 * n, dtype=dtype, device="cpu")
        _pair(dtype, x, y, scalings, left, right, turns, scratch, b, n, r - 1, transposed, start, stop)

    in_parts(total, r * n, rows)
    return y
