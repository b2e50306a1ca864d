"""Operators made of blocks, and any square matrix as one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from .base import Entries, Operator


class BlockDiagonal(Operator):
    """The direct sum of operators: each acts on its own stretch of the vector."""

    def __init__(self, blocks: Sequence[Operator]) -> None:
        self.blocks = tuple(blocks)
        if not self.blocks:
            raise ValueError("BlockDiagonal: at least one operator is needed, got none.")
        for block in self.blocks:
            if not isinstance(block, Operator):
                raise TypeError(
                    f"BlockDiagonal: every block must be an Operator, got {type(block).__name__}."
                )
        self.sizes = [block.n for block in self.blocks]
        super().__init__(sum(self.sizes))

    @property
    def dtype(self) -> torch.dtype:
        return reduce(torch.promote_types, (block.dtype for block in self.blocks))

    @property
    def device(self) -> torch.device:
        return self.blocks[0].device

    @property
    def T(self) -> Operator:
        return BlockDiagonal([block.T for block in self.blocks])

    def _matmul(self, x: Tensor) -> Tensor:
        parts = zip(self.blocks, x.split(self.sizes, -1), strict=True)
        return torch.cat([block._matmul(part) for block, part in parts], -1)

    def _rmatmul(self, y: Tensor) -> Tensor:
        parts = zip(self.blocks, y.split(self.sizes, -1), strict=True)
        return torch.cat([block._rmatmul(part) for block, part in parts], -1)

    def entries(self) -> Entries:
        start, parts = 0, []
        for block in self.blocks:
            rows, columns, values = block.entries()
            parts.append((rows + start, columns + start, values))
            start += block.n
        return Entries(*(torch.cat(part) for part in zip(*parts, strict=True)))

    def eigenvalues(self) -> Tensor:
        return torch.cat([block.eigenvalues() for block in self.blocks])

    def inverse(self) -> Operator:
        return BlockDiagonal([block.inverse() for block in self.blocks])

    def __pow__(self, p: int) -> Operator:
        return BlockDiagonal([block**p for block in self.blocks])

    def __repr__(self) -> str:
        return f"BlockDiagonal([{', '.join(repr(block) for block in self.blocks)}])"


class DenseOperator(Operator):
    """Any square matrix as an operator; its product costs O(n^2)."""

    made_of = ("A",)

    def __init__(self, A: Tensor) -> None:
        if A.ndim != 2 or A.shape[0] != A.shape[1]:
            raise ValueError(f"DenseOperator: the matrix must be square, got shape {tuple(A.shape)}.")
        self.A = A
        super().__init__(A.shape[0])

    @property
    def T(self) -> Operator:
        return DenseOperator(self.A.mT)

    def _matmul(self, x: Tensor) -> Tensor:
        dtype = torch.promote_types(x.dtype, self.dtype)
        return x.to(dtype) @ self.A.mT.to(dtype)

    def _rmatmul(self, y: Tensor) -> Tensor:
        return self.T.matmul(y)

    def dense_in(self, dtype: torch.dtype) -> Tensor:
        return self.A.to(dtype)

    def entries(self) -> Entries:
        rows, columns = self.A.nonzero(as_tuple=True)
        return Entries(rows, columns, self.A[rows, columns])

    def inverse(self) -> Operator:
        found, failed = torch.linalg.inv_ex(self.A)
        if bool(failed):
            raise ValueError(f"DenseOperator: the matrix of {self.n} x {self.n} is singular.")
        return DenseOperator(found)
