"""Closure rules of block-circulant matrices."""

from __future__ import annotations

import torch

from ...algebra.known import KnownDisplacement
from ...algebra.members import linear_in_its_tensor, shift, units
from ...algebra.multiply import rmultiply
from ...algebra.structure import DisplacementStructure, Generators
from ...core.linear_map import LinearMap
from ...core.rules import rule
from ...operators import BlockDiagonal, Operator
from ..circulant.closure import opposite_shifts, reversed_column
from . import BlockCirculant

linear_in_its_tensor(BlockCirculant)


@rule("transpose", BlockCirculant)
def _(M: BlockCirculant) -> BlockCirculant:
    column = reversed_column(M.column).transpose(0, 1)
    return BlockCirculant.unchecked(M.in_features, M.out_features, {"column": column}, M.options)


@rule("matmul", BlockCirculant, BlockCirculant)
def _(M: BlockCirculant, N: BlockCirculant) -> BlockCirculant | None:
    rows, middle, b = M.column.shape
    fits = N.column.shape[-1] == b and M.in_features % b == 0 and b <= max(M.out_features, N.in_features)
    if not fits or M.dtype != N.dtype:
        return None
    options = {"block_size": b}
    full = BlockCirculant.unchecked(rows * b, middle * b, M.tensors, options)
    columns = full.matmul(N.column.transpose(0, 1).flatten(1))  # the first of each column of blocks
    column = columns.unflatten(-1, (rows, b)).transpose(0, 1)
    return BlockCirculant.unchecked(M.out_features, N.in_features, {"column": column}, options)


@rule("displacement_structure", BlockCirculant)
def _(M: BlockCirculant) -> DisplacementStructure:
    """As circulant in every block: only the last row and column of blocks may be cropped."""
    b = M.column.shape[-1]
    A, C = (_blocks_of_shifts(size, b, M) for size in M.shape)
    broken_row, broken_column = ([size - size % b] if size % b else [] for size in M.shape)

    def make() -> Generators:
        rows = units(M.out_features, broken_row, M)
        across = rmultiply(M, rows) - C.matmul(rmultiply(M, A.rmatmul(rows)))
        columns = units(M.in_features, broken_column, M)
        down = M.matmul(columns) - A.matmul(M.matmul(C.rmatmul(columns)))
        down = down - rows.sum(0) * down  # the place where both meet is in the row
        return torch.cat((rows, down)), torch.cat((across, columns))

    return DisplacementStructure(A, C.T, "stein", len(broken_row) + len(broken_column), make)


def _blocks_of_shifts(size: int, b: int, like: LinearMap) -> Operator:
    sizes = [b] * (size // b) + ([size % b] if size % b else [])
    return BlockDiagonal([shift(n, 1.0, like) for n in sizes])


@rule("known_displacement", BlockCirculant)
def _(M: BlockCirculant) -> KnownDisplacement:
    (m, n), (k, l, _) = M.shape, M.column.shape  # noqa: E741
    return KnownDisplacement(opposite_shifts(M), min(k + l, m, n))
