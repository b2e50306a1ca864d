"""Products with grids of circulant blocks by the compiled FFT: tensors in, tensors out.

    y_p = sum_q columns[p, q] (*) x_q

where (*) is the cyclic convolution of length s = 2N, a power of two from 32 on, and the last blocks of x and
of y may be cropped; `circulant.h` has the formula. For one grid or a stack, whose axes come first. Tensors
are contiguous, on the CPU and of one dtype:

    columns (.., p, q, c)         first columns of the blocks, c <= s entries, moved up by `start` places
    spectra (.., p, q, 2, s)      what products take of them
    x (.., b, n), y (.., b, m)    n at most q s, m at most p s
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from .library import Kernel
from .tables import scratch, table, tables
from .threads import in_parts, joined

_tables = Kernel("ldr_block_tables", "pi")
_spectra = Kernel("ldr_block_spectra", "ppppp" + "iiii")
_blocks = Kernel("ldr_blocks", "ppppp" + "iiiiiiiii")
_backward = Kernel("ldr_blocks_backward", "ppppppp" + "iiiiiiii")
_gradients = Kernel("ldr_block_gradients", "ppppp" + "iiii")


@cache
def _g(N: int, dtype: torch.dtype) -> int:
    return table(_tables, 2 * N, N, dtype)


def spectra(columns: Tensor, size: int, start: int = 0) -> Tensor:
    """The spectra of the blocks, of s = `size`."""
    (*blocks, count), N, dtype = columns.shape, size // 2, columns.dtype
    found, turns, room = columns.new_empty((*blocks, 2, size)), tables(N, dtype), scratch(2 * size, dtype)
    _spectra(dtype, columns, found, _g(N, dtype), turns, room, math.prod(blocks), count, start, N)
    return found


def product(of: Tensor, x: Tensor, size: int, *, transposed: bool = False) -> Tensor:
    """M x, (.., b, size), or M^T x, for spectra `of` blocks: p + q complex FFTs of length s / 2 a vector."""
    (p, q, _, s), (*rows_of_x, n), dtype = of.shape[-4:], x.shape, x.dtype
    y, turns = x.new_empty((*rows_of_x, size)), tables(s // 2, dtype)
    total = x.numel() // n
    b = total * 2 * p * q * s // of.numel()

    def rows(start: int, stop: int) -> None:
        room = scratch(s * (2 + max(p, q)), dtype)
        _blocks(dtype, x, y, of, turns, room, b, size, n, p, q, int(transposed), s // 2, start, stop)

    in_parts(total, 2 * p * q * s, rows)
    return y


def backward(
    u: Tensor,
    x: Tensor,
    of: Tensor,
    count: int,
    start: int = 0,
    *,
    columns: bool = True,
    vectors: bool = True,
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of the columns, (.., p, q, count), and of x; None where they are not wanted."""
    (p, q, _, s), m, n, dtype = of.shape[-4:], u.shape[-1], x.shape[-1], x.dtype
    N, turns, dx = s // 2, tables(s // 2, dtype), torch.empty_like(x) if vectors else None
    stack, total = of.numel() // (2 * p * q * s), x.numel() // n
    b = total // stack
    parts: dict[int, Tensor] = {}

    def rows(first: int, stop: int) -> None:
        room = scratch(s * (2 + p + q), dtype)
        sums = None
        if columns:
            shape = (stop - 1) // b - first // b + 1, p, q, 2, s
            sums = parts[first] = x.new_zeros(shape)
        _backward(dtype, u, x, dx, sums, of, turns, room, b, m, n, p, q, N, first, stop)

    if total:
        in_parts(total, 2 * p * q * s, rows)
    if not columns:
        return None, dx
    found, room = u.new_empty((*of.shape[:-2], count)), scratch(2 * s, dtype)
    sums = joined(parts, b, (stack, p, q, 2, s), u)
    _gradients(dtype, sums, found, _g(N, dtype), turns, room, stack * p * q, count, start, N)
    return found, dx
