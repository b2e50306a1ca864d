"""Circulant matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core.choice import fft_multiply_adds
from ...core.contract import Random, Weights
from ...core.matrix import StructuredMatrix, normal_
from ...core.owned import owned
from ...functional import circulant_blocks
from ...functional.circulant_blocks import circulants


class Circulant(StructuredMatrix, name="circulant"):
    """Circulant: the leading m x n part of the circulant matrix with this first column.

    M[i, j] = column[(i - j) mod N], N = max(m, n). Parameters: `column` (N). Cost: two real FFTs a
    vector, of length N where that is a product of 2, 3, 5 and 7 (else padded).

    Reference: Cheng et al., "An exploration of parameter redundancy in deep networks with circulant
    projections", 2015.
    """

    look = "#888888", "X"
    at_once = ("_materialize",)

    cpu_frozen = 8.0
    cpu_training = 5.0, 64.0, 5e5
    gpu_frozen = 25.0, 2.5e9
    gpu_training = 40.0, 1e9
    projection_work = 0

    ranked = False
    scaled = ("column",)

    @classmethod
    def from_column(cls, column: Tensor) -> Circulant:
        """The whole circulant matrix with this first column, shape (n,)."""
        if not isinstance(column, Tensor) or column.ndim != 1 or not len(column):
            got = tuple(column.shape) if isinstance(column, Tensor) else type(column).__name__
            raise ValueError(f"Circulant: column must be a vector of at least one entry, got {got}.")
        return cls(len(column), len(column), column=column)

    @classmethod
    def parameter_shapes(cls, out_features: int, in_features: int, rank: int) -> dict[str, tuple[int, ...]]:
        return {"column": (max(out_features, in_features),)}

    @classmethod
    def init_(
        cls, tensors: Weights, out_features: int, in_features: int, generator: Random = None, **options: Any
    ) -> None:
        normal_(tensors["column"], (3 * in_features) ** -0.5, generator)

    @classmethod
    def multiply_adds(cls, out_features: int, in_features: int, rank: int, **options: Any) -> float:
        m, n = out_features, in_features
        return 2 * fft_multiply_adds(max(m, n)) + 2 * max(m, n)

    def fast_in_words(self) -> str:
        return f"2 real FFTs of length {max(self.shape[-2:])} a row"

    def factors(self) -> list[tuple[Tensor, ...]]:
        m, n = self.shape
        i = torch.arange(len(self.column), device=self.device)
        return [(self.column[(i.unsqueeze(1) - i) % len(i)][:m, :n],)]

    def _materialize(self) -> Tensor:
        return self.dense_in(self.dtype)

    def dense_in(self, dtype: torch.dtype) -> Tensor:
        return circulants(self.column, dtype)[..., : self.out_features, : self.in_features]

    def _matmul(self, x: Tensor) -> Tensor:
        return circulant_blocks.product(owned(self.column), x, self.out_features)

    def _rmatmul(self, y: Tensor) -> Tensor:
        column = torch.cat((self.column[..., :1], self.column[..., 1:].flip(-1)), -1)
        return circulant_blocks.product(column, y, self.in_features)
