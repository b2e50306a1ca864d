"""The paper's accelerations over an unstructured matrix-vector product, typed from its table.

Thomas, Gu, Dao, Rudra, Ré, "Learning Compressed Transforms with Low Displacement Rank", 2018, appendix:
inference, one vector, n x n, float64 NumPy with planned FFTs on one thread. LDR-TD is in it but not timed.
"""

from __future__ import annotations

from torchldr.matrices import structures

SIZES = tuple(2**power for power in range(9, 16))
RANKS = (1, 2, 4, 8, 16)
_TABLE = """\
ldr_sd          512  0.0668  0.0463  0.0405   0.031  0.0256
ldr_sd         1024   0.149    0.12  0.0945  0.0673  0.0524
ldr_sd         2048   0.499   0.432   0.302   0.194   0.137
ldr_sd         4096    3.34    2.57    1.61    1.06   0.752
ldr_sd         8192    9.71    6.61     4.4    2.46    1.68
ldr_sd        16384    21.2    14.1    8.38    4.35       3
ldr_sd        32768    46.1    28.2      16    8.58     5.7
toeplitz_like   512   0.306    0.26   0.232   0.186   0.161
toeplitz_like  1024   0.734   0.621   0.518     0.4   0.328
toeplitz_like  2048     1.9    1.71    1.38    1.08   0.846
toeplitz_like  4096    12.3    10.1    7.92    5.97    4.62
toeplitz_like  8192    33.4    27.3    22.6    15.2    12.3
toeplitz_like 16384    69.6    56.8    41.9      30    22.6
toeplitz_like 32768     149     119    90.7    54.6    38.2
ldr_td
low_rank        512    51.5    24.3    24.6    20.8    18.1
low_rank       1024     139    54.1    56.6    46.2    34.3
low_rank       2048     414     160     171     105      69
low_rank       4096    2380     871     746     473     359
low_rank       8192    5960    1750    1650    1130     886
low_rank      16384    8350    3440    3400    2290    1740
low_rank      32768   17900    7500    7530    4910    3700
"""
_ROWS = [line.split() for line in _TABLE.splitlines()]
_CELLS = {(row[0], int(row[1])): row[2:] for row in _ROWS if row[1:]}


def in_paper() -> list[str]:
    """The classes of the paper."""
    return [name for name in dict.fromkeys(row[0] for row in _ROWS) if name in structures()]


def acceleration(structure: str, n: int, rank: int | None) -> float | None:
    """The paper's speed-up over dense, or None where its table has no such cell.

    >>> acceleration("ldr_sd", 4096, 1), acceleration("ldr_sd", 100, 1)
    (3.34, None)
    """
    if (structure, n) not in _CELLS or rank not in RANKS:
        return None
    return float(_CELLS[structure, n][RANKS.index(rank)])
