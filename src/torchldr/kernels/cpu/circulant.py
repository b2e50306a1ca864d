"""Products with grids of circulant blocks by the compiled FFT: tensors in, tensors out; `circulant.h` has the
formula.

    y_p = sum_q columns[p, q] (*) x_q

where (*) is the cyclic convolution of length s = 2N, a power of two from 32 on, and the last blocks of x and
of y may be cropped. For one grid or a stack, whose axes come first; tensors are contiguous, on the CPU and of
one dtype:

    columns (.., p, q, c)         first columns of the blocks, c <= s entries, moved up by `start` places
    spectra (.., p, q, 2, s)      what products take of them
    x (.., b, n), y (.., b, m)    n at most q s, m at most p s
"""

from __future__ import annotations

import ctypes
import math
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
    (*blocks, count), N, dtype = columns.shape, size // 2, columns.dtype
    found, scratch = columns.new_empty(*blocks, 2, size), columns.new_empty(2 * size)
    turns = _g(N, dtype), tables(N, dtype)
    _spectra(dtype, columns, found, *turns, scratch, math.prod(blocks), count, start, N)
    return found


def product(of: Tensor, x: Tensor, size: int, *, transposed: bool = False) -> Tensor:
    """M x, (.., b, size), or M^T x, for spectra `of` blocks: p + q complex FFTs of length s / 2 a vector."""
    (*lead, p, q, _, s), n, total, dtype = of.shape, x.shape[-1], x.shape[:-1].numel(), x.dtype
    y, turns, b = x.new_empty(*x.shape[:-1], size), tables(s // 2, dtype), total // math.prod(lead)

    def rows(start: int, stop: int) -> None:
        scratch = torch.empty(s * (2 + max(p, q)), dtype=dtype, device="cpu")
        _blocks(dtype, x, y, of, turns, scratch, b, size, n, p, q, transposed, s // 2, start, stop)

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
    (*lead, p, q, _, s), m, n, total, dtype = (
        of.shape,
        u.shape[-1],
        x.shape[-1],
        x.shape[:-1].numel(),
        x.dtype,
    )
    stack = math.prod(lead)
    b, N, turns, dx = total // stack, s // 2, tables(s // 2, dtype), torch.empty_like(x) if vectors else None
    parts: dict[int, Tensor] = {}

    def rows(first: int, stop: int) -> None:
        scratch = torch.empty(s * (2 + p + q), dtype=dtype, device="cpu")
        sums = None
        if columns:
            shape = (stop - 1) // b - first // b + 1, p, q, 2, s
            sums = parts[first] = torch.zeros(shape, dtype=dtype, device="cpu")
        _backward(dtype, u, x, dx, sums, of, turns, scratch, b, m, n, p, q, N, first, stop)

    if total:
        in_parts(total, 2 * p * q * s, rows)
    if not columns:
        return None, dx
    found, scratch = u.new_empty(*lead, p, q, count), u.new_empty(2 * s)
    sums = joined(parts, b, (stack, p, q, 2, s), u)
    _gradients(dtype, sums, found, _g(N, dtype), turns, scratch, stack * p * q, count, start, N)
    return found, dx
