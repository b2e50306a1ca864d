"""Products with grids of circulant blocks by the compiled FFT: tensors in, tensors out; `circulant.h` has the formula.

    y_p = sum_q columns[p, q] (*) x_q

where (*) is the cyclic convolution of length s = 2N, a power of two from 32 on, and the last blocks of x and of y may
be cropped. All for stacks of R grids; tensors are contiguous, on the CPU and of one dtype:

    columns (R, p, q, c)        first columns of the blocks, c <= s entries, moved up by `start` places
    spectra (R, p, q, 2, s)     what products take of them
    x (R, b, n), y (R, b, m)    n at most q s, m at most p s
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from .library import Kernel
from .tables import memory, tables
from .threads import in_parts, joined

_tables = Kernel("ldr_block_tables", "pi")
_spectra = Kernel("ldr_block_spectra", "ppppp" + "iiii")
_blocks = Kernel("ldr_blocks", "ppppp" + "iiiiiiiii")
_backward = Kernel("ldr_blocks_backward", "ppppppp" + "iiiiiiii")
_gradients = Kernel("ldr_block_gradients", "ppppp" + "iiii")


@lru_cache(maxsize=64)
def _g(N: int, dtype: torch.dtype) -> ctypes.Array[Any]:
    made = memory(2 * N, dtype)
    _tables(dtype, ctypes.addressof(made), N)
    return made


def spectra(columns: Tensor, size: int, start: int = 0) -> Tensor:
    """The spectra of the blocks, of s = `size`."""
    stack, p, q, count = columns.shape
    N, dtype = size // 2, columns.dtype
    found, scratch = columns.new_empty(stack, p, q, 2, size), columns.new_empty(2 * size)
    _spectra(
        dtype, columns, found, _g(N, dtype), tables(N, dtype), scratch, stack * p * q, count, start, N
    )
    return found


def product(of: Tensor, x: Tensor, size: int, *, transposed: bool = False) -> Tensor:
    """M x, (R, b, size), or M^T x, for spectra `of` blocks: p + q complex FFTs of length s / 2 a vector."""
    (stack, b, n), (_, p, q, _, s), dtype = x.shape, of.shape, x.dtype
    y, turns = x.new_empty(stack, b, size), tables(s // 2, dtype)

    def rows(start: int, stop: int) -> None:
        scratch = torch.empty(s * (2 + max(p, q)), dtype=dtype, device="cpu")
        _blocks(dtype, x, y, of, turns, scratch, b, size, n, p, q, transposed, s // 2, start, stop)

    in_parts(stack * b, 2 * p * q * s, rows)
    return y


def backward(
    u: Tensor, x: Tensor, of: Tensor, count: int, start: int = 0, *, columns: bool = True, vectors: bool = True
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of the columns, (R, p, q, count), and of x; None where they are not wanted."""
    (stack, b, m), n, (_, p, q, _, s), dtype = u.shape, x.shape[2], of.shape, x.dtype
    N, turns, dx = s // 2, tables(s // 2, dtype), torch.empty_like(x) if vectors else None
    parts: dict[int, Tensor] = {}

    def rows(first: int, stop: int) -> None:
        scratch = torch.empty(s * (2 + p + q), dtype=dtype, device="cpu")
        sums = None
        if columns:
            shape = (stop - 1) // b - first // b + 1, *of.shape[1:]
            sums = parts[first] = torch.zeros(shape, dtype=dtype, device="cpu")
        _backward(dtype, u, x, dx, sums, of, turns, scratch, b, m, n, p, q, N, first, stop)

    if b:
        in_parts(stack * b, 2 * p * q * s, rows)
    if not columns:
        return None, dx
    found, scratch = u.new_empty(stack, p, q, count), u.new_empty(2 * s)
    sums = joined(parts, b, of.shape, u)
    _gradients(dtype, sums, found, _g(N, dtype), turns, scratch, stack * p * q, count, start, N)
    return found, dx
