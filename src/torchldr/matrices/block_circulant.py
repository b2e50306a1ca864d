"""Block-circulant matrices: a grid of circulant blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..algebra.convert import convert
from ..algebra.known import KnownDisplacement
from ..algebra.members import linear_in_its_tensor, opposite_shifts, shift, units
from ..algebra.multiply import rmultiply
from ..algebra.structure import DisplacementStructure, Generators
from ..core.checks import check_cut
from ..core.choice import fft_multiply_adds
from ..core.contract import Random, Weights
from ..core.linear_map import LinearMap
from ..core.matrix import StructuredMatrix, normal_
from ..core.owned import owned
from ..core.rules import rule
from ..functional import circulant_blocks
from ..functional.circulant_blocks import circulants
from ..functional.prepared import Prepared
from ..linalg.solvers import Candidate, formula
from ..operators import BlockDiagonal, Operator
from ..project.problem import Problem, Tensors
from .circulant.project import fit_blocks
from .circulant.rules import circulant_grid, circulant_product, integer_grid, reversed_column
from .ldr_td import LDRTridiagonal
from .toeplitz_like import ToeplitzLike


def grid(m: int, n: int, block_size: int | None = None) -> tuple[int, int, int]:
    """Rows and columns of blocks, and their size."""
    b = block_size or min(8, max(m, n))
    return -(-m // b), -(-n // b), b


class BlockCirculant(StructuredMatrix, name="block_circulant"):
    """Block-circulant: a grid of circulant blocks of b x b, the last ones cropped.

    Parameters: `column` (ceil(m/b), ceil(n/b), b), the first column of every block. Cost: (m + n) / b
    real FFTs of length b and m n / b complex multiplications a vector.

    Options:
        block_size: b, from 1 (dense) to max(m, n) (one circulant); by default 8, or max(m, n) if that
            is smaller. It need not divide m or n.

    Reference: Ding et al., "CirCNN", 2017.
    """

    at_once = ("_materialize",)

    cpu_frozen = 3.15
    cpu_training = 3.5, 128.0, 1e7
    gpu_frozen = 3.0, 2.5e9
    gpu_training = 3.0, 5e9
    projection_work = 0
    compresses = True

    ranked = False
    scaled = ("column",)

    @classmethod
    def from_columns(cls, columns: Tensor) -> BlockCirculant:
        """The matrix whose block (p, q) is circulant with first column columns[p, q], shape (k, l, b)."""
        if not isinstance(columns, Tensor) or columns.ndim != 3 or 0 in columns.shape:
            got = tuple(columns.shape) if isinstance(columns, Tensor) else type(columns).__name__
            raise ValueError(f"BlockCirculant: columns must have shape (k, l, b), none 0, got {got}.")
        k, l, b = columns.shape  # noqa: E741
        return cls(k * b, l * b, column=columns, block_size=b)

    @classmethod
    def parameter_shapes(
        cls, out_features: int, in_features: int, rank: int, *, block_size: int | None = None
    ) -> dict[str, tuple[int, ...]]:
        check_cut(cls.__name__, "block_size", block_size, out_features, in_features)
        return {"column": grid(out_features, in_features, block_size)}

    @classmethod
    def init_(
        cls, tensors: Weights, out_features: int, in_features: int, generator: Random = None, **options: Any
    ) -> None:
        normal_(tensors["column"], (3 * in_features) ** -0.5, generator)

    @classmethod
    def multiply_adds(cls, out_features: int, in_features: int, rank: int, **options: Any) -> float:
        rows, columns, b = grid(out_features, in_features, **options)
        # Half a spectrum of complex products, each four real ones.
        return (rows + columns) * fft_multiply_adds(b) + 4 * rows * columns * (b // 2 + 1)

    @classmethod
    def variants(cls, out_features: int, in_features: int) -> list[dict[str, Any]]:
        largest = min(out_features, in_features)
        return [{"block_size": 2**i} for i in range(1, 12) if 2**i <= largest]

    def fast_in_words(self) -> str:
        rows, columns, b = self.column.shape[-3:]
        return f"{rows + columns} real FFTs of length {b} and {rows * columns} products of spectra a row"

    def factors(self) -> list[tuple[Tensor, ...]]:
        (m, n), i = self.shape, torch.arange(self.column.shape[-1], device=self.device)
        grid = self.column[..., (i.unsqueeze(1) - i) % len(i)]  # (rows, columns, b, b)
        return [(grid.transpose(1, 2).flatten(2).flatten(0, 1)[:m, :n],)]

    def _materialize(self) -> Tensor:
        return self.dense_in(self.dtype)

    def dense_in(self, dtype: torch.dtype) -> Tensor:
        grid = circulants(self.column, dtype)  # (..., rows, columns, b, b)
        whole = grid.transpose(-3, -2).flatten(-2).flatten(-3, -2)
        return whole[..., : self.out_features, : self.in_features]

    def _matmul(self, x: Tensor) -> Tensor:
        return circulant_blocks.product(owned(self.column), x, self.out_features)

    def _rmatmul(self, y: Tensor) -> Tensor:
        column = reversed_column(self.column).transpose(-3, -2)
        return circulant_blocks.product(column, y, self.in_features)


# Frozen.


@rule("frozen", BlockCirculant)
def _(M: BlockCirculant, bias: Tensor | None) -> Prepared:
    return circulant_blocks.frozen(M.column, M.out_features)


# Closure.

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


# A block-circulant matrix as a member of LDR-TD.

rule("to_ldr_td", BlockCirculant)(lambda M, tol: convert(convert(M, ToeplitzLike, tol=tol), LDRTridiagonal))


# Solving: FFTs, then one small dense system a frequency.


@rule("solvers", BlockCirculant)
def _(M: BlockCirculant) -> list[Candidate] | None:
    size = M.column.shape[-1]
    if M.in_features % size:
        return None  # cropped blocks are no longer circulant
    spectra = torch.fft.rfft(M.column).permute(2, 0, 1)  # (f, k, k)

    def solve(b: Tensor, spectra: Tensor) -> Tensor:
        blocks = torch.fft.rfft(b.unflatten(-1, (-1, size))).permute(2, 1, 0)  # (f, k, p)
        factors, pivots, _ = torch.linalg.lu_factor_ex(spectra)
        x = torch.linalg.lu_solve(factors, pivots, blocks).permute(2, 1, 0)
        return torch.fft.irfft(x, size).flatten(-2)

    return [formula("fft", lambda b: solve(b, spectra), lambda b: solve(b, spectra.mH))]


# Projection: least squares.


@rule("project", BlockCirculant)
def project(problem: Problem, rank: int) -> Tensors:
    return {"column": fit_blocks(problem, grid(*problem.shape, **problem.options)[-1])}


# In an ONNX graph.


@rule("onnx", BlockCirculant)
def product(mode: str, M: BlockCirculant) -> nn.Module:
    return circulant_product(mode, M.column, M.out_features, M.in_features, M.dtype)


# In C.


@rule("c", BlockCirculant)
def _(M: BlockCirculant, c: Any) -> str:
    rows, columns, b = M.column.shape
    return circulant_grid(M, c, rows, columns, b)


@rule("c_integer", BlockCirculant)
def _(M: BlockCirculant, c: Any) -> str:
    return integer_grid(M, c, *M.column.shape)
