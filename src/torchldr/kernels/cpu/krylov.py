"""Krylov columns of tridiagonal operators with two corners, and their adjoint: `krylov.h` has the loops.

    (A x)_p = lower_p x_{p-1} + diagonal_p x_p + upper_p x_{p+1},  indices modulo m
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from .library import Kernel
from .threads import in_parts

_COLUMNS = Kernel("krylov_columns", "iiiiiiippppp")
_ROOM = Kernel("krylov_room", "ip")
_ADJOINT = Kernel("krylov_adjoint", "iiiiiiipppppppppp")

_VECTOR = 8  # entries that a loop takes at once, as `in_parts` counts steps


def columns(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, k: int) -> Tensor:
    """The Krylov matrices K_k(A, v), transposed: row j is A^j v.

    Args:
        lower, diagonal, upper: shape (R, m), contiguous like all tensors, float32 or float64.
        V: shape (R, r, m).
        k: how many columns, at least 1.

    Returns:
        Shape (R, r, k, m). O(R r k m) work.
    """
    R, r, m = V.shape
    K = V.new_empty(R, r, k, m)
    K[:, :, 0] = V
    fill(K.flatten(0, 1), lower, diagonal, upper)
    return K


def fill(K: Tensor, lower: Tensor, diagonal: Tensor, upper: Tensor) -> None:
    """Columns 1, 2, .. of K (R r, k, m) from column 0, in place; K may have any strides but 1 within columns."""
    vectors, k, m = K.shape
    r = vectors // max(lower.shape[0], 1)
    each, pitch, _ = K.stride()

    def some(start: int, stop: int) -> None:
        _COLUMNS(K.dtype, start, stop, r, k, m, each, pitch, lower, diagonal, upper, K, _room(K))

    in_parts(vectors, k * m // _VECTOR, some)


def adjoint(
    lower: Tensor, diagonal: Tensor, upper: Tensor, K: Tensor, dK: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of sum(dK * columns(lower, diagonal, upper, V, k)) in all tensors.

    Args:
        lower, diagonal, upper: shape (R, m).
        K: the columns, shape (R, r, k, m).
        dK: shape (R, r, k, m).
    """
    R, r, _, m = K.shape
    dV, collected = K.new_zeros(R, r, m), [torch.zeros_like(lower) for _ in range(3)]
    collect(K.flatten(0, 1), dK.flatten(0, 1), lower, diagonal, upper, dV, collected)
    return collected[0], collected[1], collected[2], dV


def collect(
    K: Tensor,
    dK: Tensor,
    lower: Tensor,
    diagonal: Tensor,
    upper: Tensor,
    after: Tensor,
    collected: list[Tensor],
) -> None:
    """Take gradients dK of columns K (R r, k, m), of equal strides, back to the first column.

    `after` (R, r, m) has the gradient of the column that follows, and gets that of the first one, `dK` included. The
    gradients of the coefficients are added to the three tensors `collected`.
    """
    R, r, m = after.shape
    k, (each, pitch, _) = K.shape[1], K.stride()

    def some(start: int, stop: int) -> None:
        _ADJOINT(
            K.dtype, start, stop, r, k, m, each, pitch, lower, diagonal, upper, K, dK, after, *collected, _room(K)
        )  # fmt: skip

    in_parts(R, 3 * r * k * m // _VECTOR, some)


def _room(K: Tensor) -> Tensor:
    """Memory for one thread."""
    return K.new_empty(_numbers(K.dtype, K.shape[-1]))


@cache
def _numbers(dtype: torch.dtype, m: int) -> int:
    size = torch.zeros(1, dtype=torch.int64)
    _ROOM(dtype, m, size)
    return int(size)
