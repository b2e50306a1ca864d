"""The paper's accelerations over an unstructured matrix-vector product, typed from its table.

Thomas, Gu, Dao, Rudra, Ré, "Learning Compressed Transforms with Low Displacement Rank", 2018, appendix:
inference, one vector, n x n, float64 NumPy with planned FFTs on one thread.
"""

from __future__ import annotations

SIZES = tuple(2**power for power in range(9, 16))
RANKS = (1, 2, 4, 8, 16)

# Rows are the sizes above, columns the ranks.
ACCELERATION: dict[str, tuple[tuple[float, ...], ...]] = {
    "low_rank": (
        (5.15e1, 2.43e1, 2.46e1, 2.08e1, 1.81e1),
        (1.39e2, 5.41e1, 5.66e1, 4.62e1, 3.43e1),
        (4.14e2, 1.60e2, 1.71e2, 1.05e2, 6.90e1),
        (2.38e3, 8.71e2, 7.46e2, 4.73e2, 3.59e2),
        (5.96e3, 1.75e3, 1.65e3, 1.13e3, 8.86e2),
        (8.35e3, 3.44e3, 3.40e3, 2.29e3, 1.74e3),
        (1.79e4, 7.50e3, 7.53e3, 4.91e3, 3.70e3),
    ),
    "toeplitz_like": (
        (3.06e-1, 2.60e-1, 2.32e-1, 1.86e-1, 1.61e-1),
        (7.34e-1, 6.21e-1, 5.18e-1, 4.00e-1, 3.28e-1),
        (1.90e0, 1.71e0, 1.38e0, 1.08e0, 8.46e-1),
        (1.23e1, 1.01e1, 7.92e0, 5.97e0, 4.62e0),
        (3.34e1, 2.73e1, 2.26e1, 1.52e1, 1.23e1),
        (6.96e1, 5.68e1, 4.19e1, 3.00e1, 2.26e1),
        (1.49e2, 1.19e2, 9.07e1, 5.46e1, 3.82e1),
    ),
    "ldr_sd": (
        (6.68e-2, 4.63e-2, 4.05e-2, 3.10e-2, 2.56e-2),
        (1.49e-1, 1.20e-1, 9.45e-2, 6.73e-2, 5.24e-2),
        (4.99e-1, 4.32e-1, 3.02e-1, 1.94e-1, 1.37e-1),
        (3.34e0, 2.57e0, 1.61e0, 1.06e0, 7.52e-1),
        (9.71e0, 6.61e0, 4.40e0, 2.46e0, 1.68e0),
        (2.12e1, 1.41e1, 8.38e0, 4.35e0, 3.00e0),
        (4.61e1, 2.82e1, 1.60e1, 8.58e0, 5.70e0),
    ),
}


def acceleration(structure: str, n: int, rank: int | None) -> float | None:
    """The paper's speed-up over dense, or None where its table has no such cell.

    >>> acceleration("ldr_sd", 4096, 1), acceleration("ldr_sd", 100, 1)
    (3.34, None)
    """
    if structure not in ACCELERATION or n not in SIZES or rank not in RANKS:
        return None
    return ACCELERATION[structure][SIZES.index(n)][RANKS.index(rank)]
