"""Closure rules of circulant matrices."""

from __future__ import annotations

from torch import Tensor

from ...algebra.known import KnownDisplacement, Operators
from ...algebra.members import like, linear_in_its_tensor, shift, units
from ...algebra.multiply import multiply
from ...algebra.structure import DisplacementStructure, Generators
from ...core.linear_map import LinearMap
from ...core.rules import apply, rule
from ...operators import Shift, same
from . import Circulant

linear_in_its_tensor(Circulant)


def reversed_column(column: Tensor) -> Tensor:
    """c_{-i}: the first column of a circulant matrix's transpose."""
    return column.flip(-1).roll(1, -1)


@rule("transpose", Circulant)
def _(M: Circulant) -> Circulant:
    column = reversed_column(M.column)
    return Circulant.unchecked(M.in_features, M.out_features, {"column": column}, M.options)


@rule("matmul", Circulant, Circulant)
def _(M: Circulant, N: Circulant) -> Circulant | None:
    """Crops of whole circulant matrices multiply as those where nothing is cropped between them."""
    size = M.in_features
    whole = size == max(M.shape) == max(N.shape) == max(M.out_features, N.in_features)
    if not whole or M.dtype != N.dtype:
        return None
    full = Circulant.unchecked(size, size, M.tensors, M.options)
    return Circulant.unchecked(M.out_features, N.in_features, {"column": full.matmul(N.column)}, M.options)


@rule("inverse", Circulant)
def _(M: Circulant) -> Circulant:
    """The inverse's first column solves for the first unit vector."""
    return like(M, column=apply("solve", M, b=units(M.out_features, [0], M).mT).squeeze(-1))


@rule("displacement_structure", Circulant)
def _(M: Circulant) -> DisplacementStructure:
    """A whole circulant matrix commutes with Z_1; a cropped one breaks that in its first row or column."""
    m, n = M.shape

    def make() -> Generators:
        c = M.column
        if m > n:
            return (c - c.roll(n)).unsqueeze(0), units(n, [0], M)
        if m < n:
            row = reversed_column(c)
            return units(m, [0], M), (row - row.roll(m)).unsqueeze(0)
        return c.new_zeros(0, m), c.new_zeros(0, n)

    return DisplacementStructure(shift(m, 1.0, M), shift(n, 1.0, M).T, "stein", int(m != n), make)


@rule("member", Circulant)
def _(M: LinearMap, known: DisplacementStructure) -> Circulant | None:
    m, n = M.shape
    Z = shift(m, 1.0, M)
    if m != n or known.form != "stein" or known.rank or not (same(known.A, Z) and same(known.B, Z.T)):
        return None
    return Circulant(m, n, column=multiply(M, units(n, [0], M)[0]))


@rule("known_displacement", Circulant)
def _(M: Circulant) -> KnownDisplacement:
    m, n = M.shape
    return KnownDisplacement(opposite_shifts(M), 1 if m == n else min(2, m, n))


def opposite_shifts(M: LinearMap) -> Operators:
    m, n = M.shape
    return Operators(Shift(m, 1.0, dtype=M.dtype), Shift(n, -1.0, dtype=M.dtype))
