"""Matrices of low rank."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...core import costs
from ...core.dense_route import dense_route, factors_route
from ...core.matrix import StructuredMatrix
from ...core.routes import Call
from .fit import LowRankFit


def _seconds(M: Any, call: Call) -> float:
    (m, n), r, b = M.shape, M.rank, call.batch
    # And a bias, which the second product does not add itself.
    return costs.backward(call, costs.gemm(call, b, r, n) + costs.gemm(call, b, m, r) + costs.started(call))


def _product_seconds(M: Any, call: Call) -> float:
    return costs.backward(call, costs.gemm(call, M.rank, *M.shape))


class LowRank(StructuredMatrix, name="low_rank"):
    """A matrix of rank r, M = G^T H.

    Parameters: `G` (r, m), `H` (r, n). Cost: 2 r (m + n) operations a vector.
    """

    look = "#E69F00", "P"
    fuses = True
    at_once = "_matmul", "_rmatmul", "_materialize"

    ROUTES = factors_route("two_products", _seconds), dense_route(_product_seconds)
    projection_work = 0
    compresses = True

    @classmethod
    def multiply_adds(cls, out_features: int, in_features: int, rank: int, **options: Any) -> float:
        m, n = out_features, in_features
        return rank * (m + n)

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
