"""The unstructured matrix, for comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from ...core import costs
from ...core.dense_route import DenseProduct, multiply_by_dense
from ...core.matrix import StructuredMatrix
from ...core.routes import Call, Route


def _seconds(M: Any, call: Call) -> float:
    return costs.backward(call, costs.gemm(call, call.batch, *M.shape))


def _kept_weight(M: Any) -> DenseProduct:
    return DenseProduct(M.weight)


class Dense(StructuredMatrix, name="dense"):
    """An unstructured matrix W.

    Parameters: `weight` (m, n). Cost: 2 m n operations a vector.
    """

    look = "#1a1a1a", "s"
    at_once = ("_materialize",)
    fuses = True

    ROUTES = (
        Route(
            "dense",
            lambda M, call: None,
            _seconds,
            multiply_by_dense,
            _kept_weight,
            holds_dense=True,
            any_dtype=True,
        ),
    )
    projection_work = 0

    structured = False
    ranked = False
    scaled = ("weight",)

    @classmethod
    def parameter_shapes(cls, out_features: int, in_features: int, rank: int) -> dict[str, tuple[int, ...]]:
        return {"weight": (out_features, in_features)}

    @classmethod
    def init_(
        cls,
        tensors: Mapping[str, Tensor],
        out_features: int,
        in_features: int,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> None:
        bound = in_features**-0.5
        tensors["weight"].uniform_(-bound, bound, generator=generator)

    @classmethod
    def multiply_adds(cls, out_features: int, in_features: int, rank: int, **options: Any) -> float:
        m, n = out_features, in_features
        return m * n

    def factors(self) -> list[tuple[Tensor, ...]]:
        return [(self.weight,)]

    def promoted(self) -> Self:
        """The matrix as it is: a product of dense matrices runs in their own dtype."""
        return self.with_tensors(self.tensors)

    def _matmul(self, x: Tensor) -> Tensor:
        return x @ self.weight.mT.to(x.dtype)

    def _rmatmul(self, y: Tensor) -> Tensor:
        return y @ self.weight.to(y.dtype)

    def _materialize(self) -> Tensor:
        return self.weight
