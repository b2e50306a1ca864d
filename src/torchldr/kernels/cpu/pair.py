"""Products with constant square matrices by a pair of circulant ones: tensors in, tensors out; see `pair.h`."""

from __future__ import annotations

import torch
from torch import Tensor

from .library import Kernel
from .tables import tables
from .threads import in_parts

_pair = Kernel("ldr_pair", "ppppppp" + "iiiiii")


def product(scalings: Tensor, left: Tensor, right: Tensor, x: Tensor, *, transposed: bool = False) -> Tensor:
    """M x, or M^T x, for stacks of R matrices.

    Args:
        scalings: enter, beside, between, leave and aside, shape (R, 5, n).
        left, right: spectra, shape (R, r + 1, n).
        x: vectors, shape (R, b, n), n a power of two from 32 on.

    Returns:
        Shape (R, b, n). 2r + 4 complex FFTs of length n / 2 a vector.
    """
    (stack, b, n), r, dtype = x.shape, left.shape[1] - 1, x.dtype
    y, turns = torch.empty_like(x), tables(n // 2, dtype)

    def rows(start: int, stop: int) -> None:
        scratch = torch.empty(5 * n, dtype=dtype, device="cpu")
        _pair(dtype, x, y, scalings, left, right, turns, scratch, b, n, r, transposed, start, stop)

    in_parts(stack * b, (r + 1) * n, rows)
    return y
