"""Matrices of low rank."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core.matrix import StructuredMatrix
from ...project.solving import balanced


class LowRankFit:
    """The nearest matrices of low rank where |L (W - M) R^T|_F counts, as `Contract.all_ranks` has it.

    An eigenvalue problem of size min(m, n).
    """

    def __init__(self, W: Tensor, left: Tensor | None = None, root: Tensor | None = None) -> None:
        self.W, self.left, self.root = W, left, root
        T = W if left is None else left @ W
        T = T if root is None else T @ root.mT
        self.wide = T.shape[0] <= T.shape[1]
        if left is None and root is None:
            # Without a metric residuals may be as small as rounding errors, and squares would hide them.
            U, s, V = torch.linalg.svd(T, full_matrices=False)
            squares, self.vectors = s.square(), U if self.wide else V.mT
        else:
            values, vectors = torch.linalg.eigh(T @ T.mT if self.wide else T.mT @ T)
            squares, self.vectors = values.clamp(min=0).flip(0), vectors.flip(1)
        tails = squares.flip(0).cumsum(0).flip(0)
        self.tails = torch.cat([tails, tails.new_zeros(1)])

    def error(self, rank: int) -> float:
        """The square of the distance; `error(0)` is that of zero."""
        return float(self.tails[min(rank, len(self.tails) - 1)])

    def tensors(self, rank: int) -> dict[str, Tensor]:
        """G (r, m) and H (r, n) with M = G^T H the nearest matrix of this rank."""
        V, left, root = self.vectors[:, :rank], self.left, self.root
        if self.wide:  # M = L^-1 U U^T L W
            seen = self.W if left is None else left @ self.W
            G, H = V if left is None else torch.linalg.solve_triangular(left, V, upper=True), V.mT @ seen
        else:  # M = W R^T V V^T R^-T
            seen = self.W if root is None else self.W @ root.mT
            G, H = seen @ V, V.mT
            H = H if root is None else torch.linalg.solve_triangular(root.mT, H, upper=False, left=False)
        G, H = balanced(G.mT, H)
        return {"G": G, "H": H}


class LowRank(StructuredMatrix, name="low_rank"):
    """A matrix of rank r, M = G^T H.

    Parameters: `G` (r, m), `H` (r, n). Cost: 2 r (m + n) operations a vector. Begin with rank 16: at the
    default of 1 a layer passes a single number on.
    """

    look = "#E69F00", "P"
    at_once = "_matmul", "_rmatmul", "_materialize"

    own_dtype = True
    cpu_frozen = 2.8
    cpu_training = 2.8, 128.0, 5e5
    gpu_frozen = 3.0, 4e8
    gpu_training = 15.0, 0.0
    projection_work = 0
    compresses = True
    first_rank = 16  # the output lies in so many dimensions

    @classmethod
    def multiply_adds(cls, out_features: int, in_features: int, rank: int, **options: Any) -> float:
        return rank * (out_features + in_features)

    def fast_in_words(self) -> str:
        r = self.G.shape[-2]
        return f"2 matrix products of rank {r}, {r * sum(self.shape[-2:]):,} multiply-adds a row"

    @classmethod
    def all_ranks(cls, W: Tensor, left: Tensor | None, root: Tensor | None) -> LowRankFit:
        return LowRankFit(W, left, root)

    def factors(self) -> list[tuple[Tensor, ...]]:
        return [(self.G.mT, self.H)]

    def _matmul(self, x: Tensor) -> Tensor:
        return (x @ self.H.mT) @ self.G

    def _rmatmul(self, y: Tensor) -> Tensor:
        return (y @ self.G.mT) @ self.H

    def _materialize(self) -> Tensor:
        return self.G.mT @ self.H
