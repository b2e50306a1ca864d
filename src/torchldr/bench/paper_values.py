"""The paper's accelerations over an unstructured matrix-vector product, typed from its table.

Thomas, Gu, Dao, Rudra, Ré, "Learning Compressed Transforms with Low Displacement Rank", 2018, appendix:
inference, one vector, n x n, float64 NumPy with planned FFTs on one thread. Empty where it timed nothing.
"""

from __future__ import annotations

import csv
from pathlib import Path

with Path(__file__).with_suffix(".csv").open(encoding="utf-8") as _file:
    _TABLE = {(row["structure"], int(row["n"])): row for row in csv.DictReader(_file)}

SIZES = tuple(2**power for power in range(9, 16))
RANKS = (1, 2, 4, 8, 16)


def in_paper() -> list[str]:
    """The classes of the paper."""
    return list(dict.fromkeys(name for name, _ in _TABLE))


def acceleration(structure: str, n: int, rank: int | None) -> float | None:
    """The paper's speed-up over dense, or None where its table has no such cell.

    >>> acceleration("ldr_sd", 4096, 1), acceleration("ldr_sd", 100, 1)
    (3.34, None)
    """
    cell = _TABLE.get((structure, n), {}).get(f"rank {rank}")
    return float(cell) if cell else None
