"""What a structure costs: multiply-adds by the formulas of the classes, and bytes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .structure import Structure


def multiply_adds(structure: Structure, out_features: int, in_features: int) -> int | None:
    """An estimate of the multiply-adds of one fast product with a vector; None for a class without one.

    >>> multiply_adds(Structure("low_rank", 4), 512, 512), multiply_adds(Structure("dense"), 512, 512)
    (4096, 262144)
    """
    count = structure.cls.multiply_adds(out_features, in_features, structure.rank or 1, **structure.options)
    return None if count is None else round(count)


def stored_bytes(structure: Structure, matrices: Sequence[Tensor]) -> int:
    """The bytes that matrices of these shapes and dtypes take with a structure, drawn constants with them.

    >>> W = torch.zeros(64, 64)
    >>> stored_bytes(Structure("low_rank", 2), [W]), stored_bytes(Structure("fastfood"), [W])
    (1024, 1280)
    """
    cls, total = structure.cls, 0
    for W in matrices:
        m, n = W.shape
        total += structure.parameters(m, n) * W.element_size()
        options = cls.check_options(structure.options)
        constants = cls.constants(
            m, n, structure.rank or 1, dtype=W.dtype, generator=torch.Generator(), **options
        )
        total += sum(constants[name].nbytes for name in cls.drawn)
    return total
