"""The operators that the paper's proposition on expressiveness names, class by class.

`M.displacement_structure()` gives the pair that suits the rules of the algebra; the proposition speaks of
others for low-rank, circulant and block-circulant matrices, and of ACDC, for which no rule claims any.
"""

from __future__ import annotations

from functools import singledispatch
from typing import NamedTuple

import torch

from ...core.linear_map import LinearMap
from ..acdc import ACDC
from ..block_circulant import BlockCirculant
from ..circulant import Circulant
from ..low_rank import LowRank
from .constructors_base import Operators
from .operators import Diagonal, Shift, Tridiagonal
from .transforms import DCT2


class KnownDisplacement(NamedTuple):
    """Operators and a rank that the displacement by them cannot exceed."""

    operators: Operators
    rank: int


@singledispatch
def known_displacement(M: LinearMap) -> KnownDisplacement:
    """The operators with respect to which a matrix has low displacement rank, as the paper states them.

    Args:
        M: a classical matrix or transform, or a member of a structured class.

    Raises:
        TypeError: for a class without such operators (dense, Fastfood).

    low-rank, r: (I, 0), r. Circulant: (Z_1, Z_{-1}), 1 where square, else 2. k x l circulant blocks: (Z_1,
    Z_{-1}), k + l. ACDC: (S, T) with T the tridiagonal operator of the cosine transform and S = A T A^{-1},
    2 where square, else 3. Every other matrix: its own `displacement_structure()`.
    """
    found = M.displacement_structure()
    if found is None:
        raise TypeError(f"known_displacement: no operators are known for {type(M).__name__}.")
    return KnownDisplacement(Operators(found.A, found.B, found.form), found.rank)


@known_displacement.register
def _(M: LowRank) -> KnownDisplacement:
    m, n = M.shape
    identity = Diagonal(torch.ones(m, dtype=M.dtype, device=M.device))
    nothing = Diagonal(torch.zeros(n, dtype=M.dtype, device=M.device))
    return KnownDisplacement(Operators(identity, nothing), M.G.shape[0])


@known_displacement.register
def _(M: Circulant) -> KnownDisplacement:
    m, n = M.shape
    return KnownDisplacement(_shifts(M), 1 if m == n else min(2, m, n))


@known_displacement.register
def _(M: BlockCirculant) -> KnownDisplacement:
    (m, n), (k, l, _) = M.shape, M.column.shape  # noqa: E741
    return KnownDisplacement(_shifts(M), min(k + l, m, n))


@known_displacement.register
def _(M: ACDC) -> KnownDisplacement:
    m, n = M.shape
    if bool((M.A.detach() == 0).any()):
        zero = int((M.A == 0).nonzero()[0])
        raise ValueError(f"ACDC: S = A T A^{{-1}} needs a diagonal A without zeros, but A[{zero}] is 0.")
    T = DCT2(max(m, n), orthonormal=True, dtype=M.dtype, device=M.device).operators().A
    assert isinstance(T, Tridiagonal)
    S = _leading(T, m)
    scaled = Tridiagonal(S.sub * M.A[1:] / M.A[:-1], S.diag, S.super * M.A[:-1] / M.A[1:])
    return KnownDisplacement(Operators(scaled, _leading(T, n)), min(2 if m == n else 3, m, n))


def _shifts(M: LinearMap) -> Operators:
    m, n = M.shape
    return Operators(Shift(m, 1.0, dtype=M.dtype), Shift(n, -1.0, dtype=M.dtype))


def _leading(T: Tridiagonal, n: int) -> Tridiagonal:
    """The leading n x n part, without corners."""
    return Tridiagonal(T.sub[: n - 1], T.diag[:n], T.super[: n - 1])
