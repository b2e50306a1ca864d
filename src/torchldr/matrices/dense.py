"""The unstructured matrix, for comparison."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..algebra.members import like, linear_in_its_tensor, scales_columns
from ..core.contract import Random, Weights
from ..core.matrix import StructuredMatrix
from ..core.rules import rule
from ..functional.exported.dense import DenseWeight
from ..linalg.solvers import dense
from ..operators import Diagonal
from ..project.problem import Problem, Tensors


class Dense(StructuredMatrix, name="dense"):
    """An unstructured matrix W.

    Parameters: `weight` (m, n). Cost: 2 m n operations a vector.
    """

    look = "#1a1a1a", "s"
    at_once = ("_materialize",)

    own_dtype = True
    projection_work = 0

    structured = False
    ranked = False
    scaled = ("weight",)

    @classmethod
    def parameter_shapes(cls, out_features: int, in_features: int, rank: int) -> dict[str, tuple[int, ...]]:
        return {"weight": (out_features, in_features)}

    @classmethod
    def init_(
        cls, tensors: Weights, out_features: int, in_features: int, generator: Random = None, **options: Any
    ) -> None:
        bound = in_features**-0.5
        tensors["weight"].uniform_(-bound, bound, generator=generator)

    @classmethod
    def multiply_adds(cls, out_features: int, in_features: int, rank: int, **options: Any) -> float:
        return out_features * in_features

    def factors(self) -> list[tuple[Tensor, ...]]:
        return [(self.weight,)]

    def _matmul(self, x: Tensor) -> Tensor:
        return x @ self.weight.mT.to(x.dtype)

    def _rmatmul(self, y: Tensor) -> Tensor:
        return y @ self.weight.to(y.dtype)

    def _materialize(self) -> Tensor:
        return self.weight

    def dense_in(self, dtype: torch.dtype) -> Tensor:
        return self.weight.to(dtype)


# Closure.

linear_in_its_tensor(Dense)
scales_columns(Dense, "weight")


@rule("linear_map", Tensor)
def _(W: Tensor) -> Dense:
    """A tensor where a linear map is wanted."""
    return Dense(W.shape[0], W.shape[1], weight=W)


@rule("transpose", Dense)
def _(M: Dense) -> Dense:
    return Dense.unchecked(M.in_features, M.out_features, {"weight": M.weight.mT}, M.options)


@rule("matmul", Dense, Dense)
def _(M: Dense, N: Dense) -> Dense | None:
    if M.dtype != N.dtype:
        return None
    return Dense.unchecked(M.out_features, N.in_features, {"weight": M.weight @ N.weight}, M.options)


@rule("matmul", Diagonal, Dense)
def _(D: Diagonal, M: Dense) -> Dense | None:
    return None if D.d.is_complex() else like(M, weight=D.d.unsqueeze(-1).to(M.dtype) * M.weight)


# Solving: elimination.

rule("solvers", Dense)(lambda M: [dense(M)])


# Projection: the matrix itself.


@rule("project", Dense)
def project(problem: Problem, rank: int) -> Tensors:
    return {"weight": problem.W}


# In an ONNX graph.


@rule("onnx", Dense)
def product(mode: str, M: Dense) -> nn.Module:
    return DenseWeight(M.weight)


# In C: a product of each row.


@rule("c", Dense)
def _(M: Dense, c: Any) -> str:
    m, n = M.shape
    weight, scale = c.weights("weight")
    c.use("dense")
    c.call(f"dense({weight}, {scale}, {m}, {n}, x, y);")
    c.multiplications = m * n
    return "rows"


@rule("c_integer", Dense)
def _(M: Dense, c: Any) -> str:
    m, n = M.shape
    weight, y = c.finish_rows(M.weight)
    c.call(f"{c.kernel('dense')}({weight}, {m}, {n}, {y}, x, y);")
    c.multiplications = m * n
    return "rows"
