"""Krylov columns of tridiagonal operators with two corners, and their adjoint: `krylov.h` has the loops.

(A x)_p = lower_p x_{p-1} + diagonal_p x_p + upper_p x_{p+1},  indices modulo m
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from . import library
from .library import Kernel
from .threads import in_parts

_COLUMNS = Kernel("krylov_columns", "iiiiipppppp")
_ROOM = Kernel("krylov_room", "ip")
_ADJOINT = Kernel("krylov_adjoint", "iiiiipppppppppp")

_VECTOR = 8  # entries that a loop takes at once, as `in_parts` counts steps


serves = library.serves


def columns(
    lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, k: int, out: Tensor | None = None
) -> Tensor:
    """The Krylov matrices K_k(A, v), transposed: row j is A^j v.

    Args:
        lower, diagonal, upper: shape (R, m), contiguous like all tensors, float32 or float64.
        V: shape (R, r, m).
        k: how many columns, at least 1.
        out: where to put them, contiguous.

    Returns:
        Shape (R, r, k, m). O(R r k m) work.
    """
    R, r, m = V.shape
    K = V.new_empty(R, r, k, m) if out is None else out

    def some(start: int, stop: int) -> None:
        _COLUMNS(V.dtype, start, stop, r, k, m, lower, diagonal, upper, V, K, _room(V))

    in_parts(R * r, k * m // _VECTOR, some)
    return K


def adjoint(
    lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, K: Tensor, dK: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of sum(dK * columns(lower, diagonal, upper, V, k)) in all tensors.

    Args:
        lower, diagonal, upper: shape (R, m).
        V: shape (R, r, m).
        K: the columns, shape (R, r, k, m).
        dK: shape (R, r, k, m).
    """
    R, r, k, m = K.shape
    found = torch.empty_like(lower), torch.empty_like(lower), torch.empty_like(lower), torch.empty_like(V)

    def some(start: int, stop: int) -> None:
        _ADJOINT(V.dtype, start, stop, r, k, m, lower, diagonal, upper, K, dK, *found, _room(V))

    in_parts(R, 3 * r * k * m // _VECTOR, some)
    return found


def _room(V: Tensor) -> Tensor:
    """Memory for one thread."""
    return V.new_empty(_numbers(V.dtype, V.shape[-1]))


@cache
def _numbers(dtype: torch.dtype, m: int) -> int:
    size = torch.zeros(1, dtype=torch.int64, device="cpu")
    _ROOM(dtype, m, size)
    return int(size)
