"""Matrices of low rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..core.matrix import StructuredMatrix, generators_


class LowRank(StructuredMatrix, name="low_rank"):
    """A matrix of rank r, M = G^T H.

    Parameters: `G` (r, m), `H` (r, n). Cost: 2 r (m + n) operations a vector.
    """

    @classmethod
    def init_(
        cls,
        tensors: Mapping[str, Tensor],
        out_features: int,
        in_features: int,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> None:
        generators_(tensors, tensors["G"].shape[0], generator)

    def factors(self) -> list[tuple[Tensor, ...]]:
        return [(self.G.mT, self.H)]

    def _matmul(self, x: Tensor) -> Tensor:
        return (x @ self.H.mT) @ self.G

    def _rmatmul(self, y: Tensor) -> Tensor:
        return (y @ self.G.mT) @ self.H
