"""Constant products with two subdiagonal operators: everything prepared that does not depend on the rows."""

from __future__ import annotations

import torch
from torch import Tensor

from ...kernels.cpu import library
from ..prepared import Prepared
from . import convolution, pair
from .guard import Side, guard


@torch.no_grad()
def frozen(A: Side, C: Side, *, reversed: bool = False) -> Prepared | None:
    """The product sum_i K_k(A, g_i) K_k(C, h_i)^T with its constants, or None where no kernel serves.

    Args:
        A, C: subdiagonal, corner and start vectors.
        reversed: whether the product's entries come from the last to the first.
    """
    (r, m), n, device = A[2].shape, C[2].shape[-1], A[2].device
    if any(t.dtype not in (torch.float32, torch.float64) for t in A):
        return None
    dtype, settings = guard(A, C), {"reversed": reversed}
    if isinstance(dtype, str):
        return None
    if pair.serves(m, n, device) and not (device.type == "cuda" and dtype != torch.float32):
        scalings, left, right = (t.to(dtype) for t in pair.prepare(A, C))
        words = f"{2 * r + 4} complex FFTs of length {n // 2} a row"
        return Prepared(words, _by_pair, settings, scalings=scalings, left=left, right=right)
    if device.type != "cpu" or library.why_not():
        return None
    K = convolution.prepare(A, C, dtype)
    assert isinstance(K, convolution.Constants)
    words = f"{2 * r + 2} complex FFTs of length {K.left.shape[-1] // 2} a row"
    return Prepared(words, _by_convolution, settings, **K._asdict())


def _by_pair(x: Tensor, scalings: Tensor, left: Tensor, right: Tensor, reversed: bool) -> Tensor:
    rows = x if pair.reads(x, scalings) else x.to(scalings.dtype)
    y = pair.product(rows, scalings, left, right).to(x.dtype)
    return y.flip(-1) if reversed else y


def _by_convolution(x: Tensor, A: Tensor, C: Tensor, left: Tensor, right: Tensor, reversed: bool) -> Tensor:
    y = convolution.product(x.to(A.dtype), A, C, left, right).to(x.dtype)
    return y.flip(-1) if reversed else y
