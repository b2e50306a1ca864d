"""Matrices of the classical families: linear maps that know their displacement operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...algebra.known import Operators
from ...algebra.structure import DisplacementStructure
from ...core.linear_map import LinearMap
from ...core.products import check_size
from ...core.rules import family, rule


@family
class ClassicalMatrix(LinearMap):
    """A matrix given by a few vectors, of low displacement rank by its form alone.

    Unlike a structured class it cannot be the weight of a layer: it may be complex, it promotes the dtype of
    its input, and its operators are those of the paper's proposition on expressiveness. Products with vectors
    are differentiable in its vectors and in the input.
    """

    def operators(self) -> Operators:
        """The displacement operators with respect to which its rank is low."""
        raise NotImplementedError

    def support(self) -> tuple[Sequence[int], Sequence[int]]:
        """The rows and columns outside of which the displacement is zero, whatever the entries."""
        raise NotImplementedError

    def _matmul(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _rmatmul(self, y: Tensor) -> Tensor:
        raise NotImplementedError

    def _cross(self) -> tuple[Sequence[int], Sequence[int]]:
        """`support`, where that is fewer lines than the matrix has."""
        (rows, columns), (m, n) = self.support(), self.shape
        if len(rows) + len(columns) <= min(m, n):
            return rows, columns
        return (range(m), ()) if m <= n else ((), range(n))

    @property
    def displacement_rank_bound(self) -> int:
        """A bound on the rank of `displacement()`, whatever the entries."""
        rows, columns = self._cross()
        return len(rows) + len(columns)

    def displacement_structure(self) -> DisplacementStructure:
        """Operators, rank bound and generators of the displacement, which is G^T H."""
        return DisplacementStructure(*self.operators(), self.displacement_rank_bound, self._generators)

    def _generators(self) -> tuple[Tensor, Tensor]:
        """The rows and columns that hold the displacement, by products with unit vectors."""
        (rows, columns), (A, B, form) = self._cross(), self.operators()
        E, F = self._units(rows, self.out_features), self._units(columns, self.in_features)
        if form == "stein":
            row_part = self.rmatmul(E) - B.rmatmul(self.rmatmul(A.rmatmul(E)))
            column_part = self.matmul(F) - A.matmul(self.matmul(B.matmul(F)))
        else:
            row_part = self.rmatmul(A.rmatmul(E)) - B.rmatmul(self.rmatmul(E))
            column_part = A.matmul(self.matmul(F)) - self.matmul(B.matmul(F))
        column_part = column_part * (1 - E.sum(0))  # where they cross, the rows have it
        return torch.cat((E, column_part)), torch.cat((row_part, F))

    def _units(self, places: Sequence[int], size: int) -> Tensor:
        dtype = torch.promote_types(self.dtype, torch.float32)  # so products are rounded once, if at all
        units = torch.zeros(len(places), size, dtype=dtype, device=self.device)
        units[range(len(places)), list(places)] = 1
        return units

    def matmul(self, x: Tensor) -> Tensor:
        return self._run(self._matmul, x, self.in_features, "in_features")

    def rmatmul(self, y: Tensor) -> Tensor:
        """Multiply by the transposed matrix, not conjugated: (..., out_features) to (..., in_features)."""
        return self._run(self._rmatmul, y, self.out_features, "out_features")

    def _run(self, product: Callable[[Tensor], Tensor], x: Tensor, size: int, what: str) -> Tensor:
        who = type(self).__name__
        check_size(who, x, size, what)
        if x.device != self.device:
            raise ValueError(f"{who}: the input is on {x.device}, the matrix on {self.device}; move one.")
        dtype = x.dtype if x.dtype is self.dtype else torch.promote_types(x.dtype, self.dtype)
        rows = x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), size)
        if dtype.itemsize < 4 or x.dtype is not dtype:
            rows = rows.to(torch.promote_types(dtype, torch.float32))  # FFTs know no narrower one
        result = sum(self.shape) - size
        if 0 in (*rows.shape, result):  # nothing to add up, or no results: FFTs take no empty input
            y = rows.sum(-1, keepdim=True) * rows.new_zeros(result)
        else:
            y = product(rows)
        y = y if x.ndim == 2 else y.reshape(*x.shape[:-1], result)
        return y if y.dtype is dtype else y.to(dtype)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.out_features}, {self.in_features}, dtype={self.dtype})"


@rule("may_require_grad", ClassicalMatrix)
def _(M: ClassicalMatrix) -> bool:
    return any(isinstance(t, Tensor) and t.requires_grad for t in vars(M).values())
