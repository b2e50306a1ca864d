"""Tables of the compiled FFT: cosines and sines, made once for a length and a dtype."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import torch

from .library import Kernel

SMALLEST = 16  # complex numbers: the first stages of the FFT take sixteen

_TYPES: dict[torch.dtype, Any] = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}
_fill = Kernel("ldr_fft_tables", "pi")


def half_length(count: int) -> int:
    """N for products of real vectors modulo X^2N + 1 that hold `count` numbers: a power of two.

    >>> half_length(7), half_length(2047), half_length(2049)
    (16, 1024, 2048)
    """
    return max(SMALLEST, 1 << ((count - 1) // 2).bit_length())


def memory(count: int, dtype: torch.dtype) -> ctypes.Array[Any]:
    """Room for a table. No tensor: it must last whatever mode of torch is on when it is first needed."""
    made: ctypes.Array[Any] = (_TYPES[dtype] * count)()
    return made


@lru_cache(maxsize=64)
def tables(N: int, dtype: torch.dtype) -> ctypes.Array[Any]:
    """The tables of `fft.h`."""
    made = memory(5 * N + 64, dtype)
    _fill(dtype, ctypes.addressof(made), N)
    return made
