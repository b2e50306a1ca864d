"""The paper's accelerations over an unstructured matrix-vector product, typed from its table.

Thomas, Gu, Dao, Rudra, Ré, "Learning Compressed Transforms with Low Displacement Rank", 2018, appendix:
inference, one vector, n x n, float64 NumPy with planned FFTs on one thread.
"""

from __future__ import annotations

from ..core import rules
from ..core.matrix import StructuredMatrix
from ..matrices import get_structure

SIZES = tuple(2**power for power in range(9, 16))
RANKS = (1, 2, 4, 8, 16)


def in_paper() -> list[str]:
    """The classes of the paper: they have a rule with what it says of them."""
    return [cls.name for cls in rules.by_class("paper_acceleration") if issubclass(cls, StructuredMatrix)]


def acceleration(structure: str, n: int, rank: int | None) -> float | None:
    """The paper's speed-up over dense, or None where its table has no such cell.

    >>> acceleration("ldr_sd", 4096, 1), acceleration("ldr_sd", 100, 1)
    (3.34, None)
    """
    table = rules.of_class("paper_acceleration", get_structure(structure))
    rows = () if table is None else table()
    if not rows or n not in SIZES or rank not in RANKS:
        return None
    return rows[SIZES.index(n)][RANKS.index(rank)]
