"""Hankel-like matrices: Toeplitz-like ones with their rows in reverse order."""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.products import Product
from ..toeplitz_like import ToeplitzLike


class HankelLike(ToeplitzLike, name="hankel_like"):
    """Hankel-like: the rows of a Toeplitz-like matrix in reverse order.

    Parameters and cost as `ToeplitzLike`. Constant along antidiagonals where the other is constant
    along diagonals.
    """

    look = "#CC79A7", "v"
    at_once = ("_materialize",)

    ROUTES = ToeplitzLike.ROUTES
    compresses = False

    def factors(self) -> list[tuple[Tensor, ...]]:
        return [(left.flip(0), right) for left, right in super().factors()]

    def operators(self) -> tuple[Tensor, Tensor]:
        A, C = super().operators()
        return A.flip(0, 1), C

    def prepare(self) -> Product:
        product = super().prepare()
        return lambda x: product(x).flip(-1)

    def _prepare_pair(self) -> Product:
        product = super()._prepare_pair()
        return lambda x: product(x).flip(-1)

    _materialize, dense_in = ToeplitzLike._materialize, ToeplitzLike.dense_in  # by `_stein_sum`

    def _stein_sum(self, dtype: torch.dtype) -> Tensor:
        return super()._stein_sum(dtype).flip(-2)

    def _rmatmul(self, y: Tensor) -> Tensor:
        return super()._rmatmul(y.flip(-1))
