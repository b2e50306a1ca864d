"""A matrix known by its products."""

from __future__ import annotations

import torch
from torch import Tensor


class LinearMap:
    """A real matrix known by its products, shape (out_features, in_features).

    `M.matmul(x)` acts on the last axis of x, as a layer does; `M @ x` is `torch.matmul`.
    """

    out_features: int
    in_features: int

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.out_features, self.in_features))

    @property
    def T(self) -> LinearMap:
        """The transposed matrix, which shares this one's tensors."""
        return Transposed(self)

    def matmul(self, x: Tensor) -> Tensor:
        """Multiply vectors: (..., in_features) to (..., out_features)."""
        raise NotImplementedError

    def rmatmul(self, y: Tensor) -> Tensor:
        """Multiply by the transposed matrix: (..., out_features) to (..., in_features)."""
        raise NotImplementedError

    def to_dense(self) -> Tensor:
        """The matrix itself, from its definition, shape (out_features, in_features)."""
        raise NotImplementedError

    def __matmul__(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor):
            return NotImplemented
        return self.matmul(x) if x.ndim == 1 else self.matmul(x.mT).mT


class Transposed(LinearMap):
    """The transpose of a linear map."""

    def __init__(self, of: LinearMap) -> None:
        self.of = of
        self.out_features, self.in_features = of.in_features, of.out_features

    @property
    def T(self) -> LinearMap:
        return self.of

    def matmul(self, x: Tensor) -> Tensor:
        return self.of.rmatmul(x)

    def rmatmul(self, y: Tensor) -> Tensor:
        return self.of.matmul(y)

    def to_dense(self) -> Tensor:
        return self.of.to_dense().mT

    def __repr__(self) -> str:
        return f"{self.of!r}.T"
