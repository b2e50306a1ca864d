"""Memory of the CPU's kernels outside of tensors: tables of the FFT, and scratch that threads reuse.

Neither depends on a mode of torch that may be on when it is first needed.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from typing import Any

import torch

from .library import Kernel

_LINE = 64  # bytes of a line of the cache
SMALLEST = 16  # complex numbers: the first stages of the FFT take sixteen

_TYPES: dict[torch.dtype, Any] = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}
_fill = Kernel("ldr_fft_tables", "pi")


def half_length(count: int) -> int:
    """N for products of real vectors modulo X^2N + 1 that hold `count` numbers: a power of two.

    >>> half_length(7), half_length(2047), half_length(2049)
    (16, 1024, 2048)
    """
    return max(SMALLEST, 1 << ((count - 1) // 2).bit_length())


_kept: list[Any] = []  # all tables, for as long as the process lives: there are few lengths


def table(fill: Kernel, count: int, N: int, dtype: torch.dtype) -> int:
    """The address of `count` numbers that a kernel fills for a length."""
    made = (_TYPES[dtype] * count)()
    fill(dtype, ctypes.addressof(made), N)
    _kept.append(made)
    return ctypes.addressof(made)


@cache
def tables(N: int, dtype: torch.dtype) -> int:
    """The address of the tables of `fft.h`."""
    return table(_fill, 5 * N + 64, N, dtype)


class _Scratch(threading.local):
    size = 0
    address = 0
    held: ctypes.Array[Any]


_scratch = _Scratch()


def scratch(count: int, dtype: torch.dtype) -> int:
    """The address of scratch space for this many numbers, valid until this thread's next call."""
    size = count * dtype.itemsize
    if size > _scratch.size:
        _scratch.held = (ctypes.c_char * (size + _LINE))()
        _scratch.address = -(-ctypes.addressof(_scratch.held) // _LINE) * _LINE
        _scratch.size = size
    return _scratch.address
