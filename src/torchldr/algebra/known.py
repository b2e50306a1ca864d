"""The operators of the paper's proposition on expressiveness, class by class.

`M.displacement_structure()` gives the pair that the rules of the algebra use. The proposition has others for
low-rank, circulant and block-circulant matrices, and also some for ACDC. These classes have rules
"known_displacement".
"""

from __future__ import annotations

from typing import NamedTuple

from ..core import rules
from ..core.linear_map import LinearMap
from ..operators import Operator
from .structure import Form


class Operators(NamedTuple):
    """A pair of displacement operators.

    Attributes:
        A: m x m, acts on the rows.
        B: n x n, acts on the columns; the transpose of the C of a Krylov form.
        form: "sylvester" for A M - M B, "stein" for M - A M B.
    """

    A: Operator
    B: Operator
    form: Form = "sylvester"


class KnownDisplacement(NamedTuple):
    """Operators, and an upper bound of the rank of the displacement by them."""

    operators: Operators
    rank: int


def known_displacement(M: LinearMap) -> KnownDisplacement:
    """The operators by which a matrix has low displacement rank, as the paper states them.

    Args:
        M: a classical matrix or transform, or a member of a structured class.

    Raises:
        TypeError: for a class without such operators (dense, Fastfood).

    low-rank, r: (I, 0), r. Circulant: (Z_1, Z_{-1}), 1 where square, else 2. k x l circulant blocks: (Z_1,
    Z_{-1}), k + l. ACDC: (S, T) with T the tridiagonal operator of the cosine transform and S = A T A^{-1},
    2 where square, else 3. Every other matrix: its own `displacement_structure()`.
    """
    known = rules.first("known_displacement", M)
    if known is not None:
        return known
    found = M.displacement_structure()
    if found is None:
        raise TypeError(f"known_displacement: no operators are known for {type(M).__name__}.")
    return KnownDisplacement(Operators(found.A, found.B, found.form), found.rank)
