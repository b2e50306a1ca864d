"""Slow definitions: the oracles that every fast product is held against.

Everything here follows the definition line by line, in the dtype it is given, and is
differentiable; nothing here is used by a fast path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def shift_reference(m: int, f: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """Z_f: ones below the diagonal, f in the top right corner, shape (m, m)."""
    ones = torch.ones(m - 1, dtype=dtype, device="cpu")
    return subdiagonal_reference(ones, ones.new_tensor(f))


def subdiagonal_reference(subdiagonal: Tensor, corner: Tensor) -> Tensor:
    """The matrix with this subdiagonal (m - 1) and top right corner (), shape (m, m)."""
    A = torch.diag(subdiagonal, -1)
    return A + torch.nn.functional.pad(corner.reshape(1, 1), (A.shape[0] - 1, 0, 0, A.shape[0] - 1))


def tridiagonal_reference(
    subdiagonal: Tensor, diagonal: Tensor, superdiagonal: Tensor, corners: Tensor
) -> Tensor:
    """The tridiagonal matrix with corners (top right, bottom left), shape (m, m).

    Where a corner meets another entry (m <= 2) they add.
    """
    last = diagonal.shape[0] - 1
    A = subdiagonal_reference(subdiagonal, corners[0])
    A = A + torch.diag(diagonal) + torch.diag(superdiagonal, 1)
    return A + torch.nn.functional.pad(corners[1].reshape(1, 1), (0, last, last, 0))


def krylov_reference(A: Tensor, v: Tensor, k: int) -> Tensor:
    """The Krylov matrix with columns v, Av, .., A^{k-1} v.

    Args:
        A: operator, shape (m, m).
        v: start vector, shape (m,).
        k: how many columns.

    Returns:
        Shape (m, k).
    """
    return _columns(lambda x: A @ x, v, k)


def _columns(step: Callable[[Tensor], Tensor], v: Tensor, k: int, rate: Tensor | None = None) -> Tensor:
    """v and what k - 1 steps make of it, (..., m) to (..., m, k).

    With a rate () column l is divided by 2^round(rate l), which is exact.
    """
    columns, factors = [v], None if rate is None else _powers_of_two(rate, k).to(v.dtype)
    for i in range(k - 1):
        x = step(columns[-1])
        columns.append(x if factors is None else x * factors[i])
    return torch.stack(columns, -1)


def _powers_of_two(rate: Tensor, k: int) -> Tensor:
    """What each of k - 1 steps is multiplied by, so that l of them make 2^-round(rate l)."""
    exponents = (rate * torch.arange(k, device=rate.device)).round()
    return torch.exp2(exponents[:-1] - exponents[1:])


def krylov_of_side_reference(side: Iterable[Tensor], k: int) -> Tensor:
    """`krylov_reference` for a subdiagonal, a corner and start vectors (r, m), shape (r, m, k)."""
    subdiagonal, corner, V = side
    A = subdiagonal_reference(subdiagonal, corner)
    return torch.stack([krylov_reference(A, v, k) for v in V])


def krylov_of_ring_reference(
    lower: Tensor, diagonal: Tensor, upper: Tensor, v: Tensor, k: int, rate: Tensor | None = None
) -> Tensor:
    """`krylov_reference` for a cyclic tridiagonal operator, in O(m) a column; v may have axes in front.

    (Av)_i = lower_i v_{i-1} + diagonal_i v_i + upper_i v_{i+1}, indices modulo m. With a rate, column l is
    divided by 2^round(rate l).
    """
    return _columns(lambda x: lower * x.roll(1, -1) + diagonal * x + upper * x.roll(-1, -1), v, k, rate)


def krylov_of_cycle_reference(lower: Tensor, v: Tensor, k: int, rate: Tensor | None = None) -> Tensor:
    """The same where (Av)_i = lower_i v_{i-1}."""
    return _columns(lambda x: lower * x.roll(1, -1), v, k, rate)


def rate_reference(A: Iterable[Tensor], C: Iterable[Tensor]) -> Tensor:
    """How many bits a step powers of A outgrow those of C, halved: a number (), without gradient.

    sum_l A^l g (C^l h)^T stays as it is where column l of one is divided by a number and that of the other
    multiplied by it. Sizes are geometric means over rows, without rows of zeros.

    Args:
        A, C: the diagonals of either, all of one length.
    """
    size_A, size_C = (_mean_bits(torch.stack(list(diagonals))) for diagonals in (A, C))
    return ((size_A - size_C) / 2).nan_to_num(0, 0, 0)


def _mean_bits(diagonals: Tensor) -> Tensor:
    sums = diagonals.detach().double().abs().sum(0)
    there = sums > 0
    return torch.where(there, sums, 1).log2().sum() / there.sum().clamp(min=1)


def krylov_of_shift_reference(v: Tensor, f: float, k: int) -> Tensor:
    """`krylov_reference` for Z_f, in O(m) a column: entries move down, the last one to the top times f.

    v may have axes in front.
    """
    lower = torch.cat((v.new_full((1,), f), v.new_ones(v.shape[-1] - 1)))
    return krylov_of_cycle_reference(lower, v, k)
