"""Products of linear maps with vectors of any dtype, for rules that compute generators."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..core.linear_map import LinearMap
from ..operators import Operator


def multiply(M: LinearMap, x: Tensor) -> Tensor:
    """M x for vectors (..., n) in the precision of M; a real map takes complex vectors as two real ones."""
    return through(M, M.matmul, x.to(_fitting(M, x)))


def rmultiply(M: LinearMap, y: Tensor) -> Tensor:
    """M^T y for vectors (..., m), as `multiply`."""
    return through(M, M.rmatmul, y.to(_fitting(M, y)))


def through(M: LinearMap, product: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A product of M with x, or with its real and imaginary parts if M takes only real vectors."""
    if not x.is_complex() or M.dtype.is_complex or isinstance(M, Operator):
        return product(x)
    return torch.complex(product(x.real.contiguous()), product(x.imag.contiguous()))


def _fitting(M: LinearMap, x: Tensor) -> torch.dtype:
    if isinstance(M, Operator):  # operators promote, as torch does
        return x.dtype
    real = real_dtype(M.dtype)
    return torch.promote_types(real, torch.complex32) if x.is_complex() else real


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for complex128, float32 for complex64; other dtypes stay."""
    return dtype.to_real() if dtype.is_complex else dtype
