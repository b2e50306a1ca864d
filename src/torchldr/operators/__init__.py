"""Displacement operators as objects: sparse square matrices known by their products.

    Shift(n, f)          Z_f: down by one, the last entry comes back on top times f
    Diagonal(d)          entry i times d_i; may be complex
    Subdiagonal(s, c)    the shift with weights
    Tridiagonal(...)     a three-point stencil on a ring
    A.T, A ** p, BlockDiagonal([A, B]), DenseOperator(W)

They are the A and B of a displacement M - A M B or A M - M B. A structured class has operators A and C with
B = C^T, both lower. Products take any dtype, promote it as torch does, and are differentiable in the entries.
The tests compare every product with `to_dense()`.
"""

from .base import Entries, Operator, Power, TransposedOperator, sparse_product
from .blocks import BlockDiagonal, DenseOperator
from .compare import LowRankSum, difference, low_rank_sum, same
from .sparse import Diagonal, Shift, Subdiagonal, Tridiagonal, conjugated

__all__ = [
    "BlockDiagonal",
    "DenseOperator",
    "Diagonal",
    "Entries",
    "LowRankSum",
    "Operator",
    "Power",
    "Shift",
    "Subdiagonal",
    "TransposedOperator",
    "Tridiagonal",
    "conjugated",
    "difference",
    "low_rank_sum",
    "same",
    "sparse_product",
]
