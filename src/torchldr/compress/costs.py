"""What a structure costs: multiply-adds by the formulas of the classes' documentation, and bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..matrices import get_structure
from .structure import Structure

Cost = Callable[[int, int, int, Mapping[str, Any]], float]


def _fft(n: int) -> float:
    """A real transform of length n: some 2.5 n log2 n operations, and two make a multiply-add."""
    return 1.25 * n * math.log2(n) if n > 1 else 0.0


def _block_circulant(m: int, n: int, r: int, options: Mapping[str, Any]) -> float:
    b = options.get("block_size") or min(8, max(m, n))
    rows, columns = -(-m // b), -(-n // b)
    # Half a spectrum of complex products, each four real ones.
    return (rows + columns) * _fft(b) + 4 * rows * columns * (b // 2 + 1)


def _two_shifts(m: int, n: int, r: int, options: Mapping[str, Any]) -> float:
    return (r + 1) * (_fft(m) + _fft(n)) + 2 * r * (m + n)


def _hadamard(m: int, n: int, r: int, options: Mapping[str, Any]) -> float:
    p = 1 << (max(m, n) - 1).bit_length()
    return p * max(p.bit_length() - 1, 0) + 3 * p


_COSTS: dict[str, Cost] = {
    "dense": lambda m, n, r, o: m * n,
    "low_rank": lambda m, n, r, o: r * (m + n),
    "circulant": lambda m, n, r, o: 2 * _fft(max(m, n)) + 2 * max(m, n),
    "block_circulant": _block_circulant,
    "toeplitz_like": _two_shifts,
    "hankel_like": _two_shifts,
    "ldr_sd": lambda m, n, r, o: (2 * r + 2) * _fft(m + n) + 2 * r * (m + n),
    "ldr_td": lambda m, n, r, o: r * (m + n) * min(m, n),
    "cauchy_like": lambda m, n, r, o: r * m * n,
    "vandermonde_like": lambda m, n, r, o: r * m * n,
    "fastfood": _hadamard,
    "acdc": lambda m, n, r, o: 2 * _fft(max(m, n)) + m + max(m, n),
}


def multiply_adds(
    name: str, out_features: int, in_features: int, rank: int | None, options: Mapping[str, Any]
) -> int | None:
    """An estimate of the multiply-adds of one fast product with a vector; None for a class of one's own.

    >>> multiply_adds("low_rank", 512, 512, 4, {}), multiply_adds("dense", 512, 512, None, {})
    (4096, 262144)
    """
    cost = _COSTS.get(name)
    return None if cost is None else round(cost(out_features, in_features, rank or 1, options))


def stored_bytes(structure: Structure, matrices: Sequence[Tensor]) -> int:
    """The bytes that matrices of these shapes and dtypes take with a structure, drawn constants with them.

    >>> W = torch.zeros(64, 64)
    >>> stored_bytes(Structure("low_rank", 2), [W]), stored_bytes(Structure("fastfood"), [W])
    (1024, 1280)
    """
    cls, total = get_structure(structure.name), 0
    for W in matrices:
        m, n = W.shape
        total += structure.parameters(m, n) * W.element_size()
        options = cls.check_options(structure.options)
        constants = cls.constants(
            m, n, structure.rank or 1, dtype=W.dtype, generator=torch.Generator(), **options
        )
        total += sum(constants[name].nbytes for name in cls.drawn)
    return total
