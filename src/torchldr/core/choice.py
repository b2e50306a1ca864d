"""The choice between two products: `fast`, the class's own, and `dense`, that of the dense matrix.

Each class has a few numbers that say when its own product is faster (`Contract.fast_pays`). This module holds
the quantities that they compare, and the table that explains a choice.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

PRODUCTS = ("auto", "fast", "dense")
LARGEST = {"cpu": 1 << 26, "cuda": 1 << 28}
"""Entries of the largest dense matrix that is computed, by type of device; other devices count as a GPU."""
UNKNOWN_ROWS = 128  # rows assumed for a compiler's graph, which must not depend on their number


class Use(NamedTuple):
    """The inputs of a choice: sizes, the device, and whether the matrix is a constant."""

    m: int
    n: int
    rank: int
    rows: int
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    frozen: bool = False
    tf32: bool = False  # products of float32 may round their factors
    options: Mapping[str, Any] = {}
    matrices: int = 1

    @property
    def size(self) -> int:
        """The larger side."""
        return max(self.m, self.n)

    @property
    def cost(self) -> float:
        """The time of a multiply-add of this dtype on a CPU, over that of float32."""
        return _RELATIVE.get(self.dtype, 1.0)

    @property
    def gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def exact(self) -> bool:
        """Whether a GPU multiplies without its low-precision units."""
        return self.dtype == torch.float64 or (self.dtype == torch.float32 and not self.tf32)

    @property
    def too_large(self) -> bool:
        """Whether the dense matrix must not be made."""
        most = LARGEST.get(self.device, LARGEST["cuda"])
        return self.matrices * self.m * self.n > most


def _bfloat16() -> float:
    """The time of a bfloat16 multiply-add on this CPU over float32, with or without native support."""
    known = (getattr(torch.cpu, f"_is_{name}_supported", bool)() for name in ("amx_tile", "avx512_bf16"))
    if any(known):
        return 0.25
    return 1.0 if platform.machine() in ("aarch64", "arm64") else 4.0


_RELATIVE = {torch.float64: 2.0, torch.bfloat16: _bfloat16()}


def fft_multiply_adds(length: int) -> float:
    """Multiply-adds of a real transform: about 2.5 n log2 n operations, two of them a multiply-add."""
    return 1.25 * length * math.log2(length) if length > 1 else 0.0


class Row(NamedTuple):
    """One product of a matrix."""

    product: str
    cost: str
    taken: bool
    why_not: str


class Products(Sequence[Row]):
    """Both products of a matrix for a number of rows: their costs, the choice, and the reason."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = tuple(rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def taken(self) -> str:
        """The name of the product in use."""
        return next(row.product for row in self.rows if row.taken)

    def to_dicts(self) -> list[dict[str, Any]]:
        return [row._asdict() for row in self.rows]

    def __repr__(self) -> str:
        lines = []
        for row in self.rows:
            lines.append(f"{'->' if row.taken else '  '} {row.product:5}  {row.cost}")
            lines += [f"          not taken: {row.why_not}"] if row.why_not else []
        return "\n".join(lines)
