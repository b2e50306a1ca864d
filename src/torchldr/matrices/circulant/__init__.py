"""Circulant matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...core import costs
from ...core.dense_route import dense_route, own_route
from ...core.matrix import StructuredMatrix, normal_
from ...core.products import Product
from ...core.routes import Call
from ...functional.fft import conjugate, leading
from ...functional.ring import ring


def _fft_seconds(M: Any, call: Call) -> float:
    size = max(M.shape)
    seconds = 2 * costs.ffts(call, call.batch, size) + costs.passes(call, call.batch * size, 2)
    return costs.backward(call, seconds if call.kept else seconds + costs.ffts(call, 1, size))


def gather_seconds(M: Any, call: Call) -> float:
    m, n = M.shape
    return costs.backward(call, costs.passes(call, m * n, 4))


def circulants(column: Tensor) -> Tensor:
    """(..., b) to (..., b, b): the circulant matrix with that first column."""
    b = column.shape[-1]
    i = torch.arange(b, device=column.device)
    return column[..., (i.unsqueeze(1) - i) % b]


class Circulant(StructuredMatrix, name="circulant"):
    """Circulant: the leading m x n part of the circulant matrix with this first column.

    M[i, j] = column[(i - j) mod N], N = max(m, n). Parameters: `column` (N). Cost: two real FFTs a
    vector, of length N where that is a product of 2, 3, 5 and 7 (else padded).

    Reference: Cheng et al., "An exploration of parameter redundancy in deep networks with circulant
    projections", 2015.
    """

    ROUTES = own_route("fft", _fft_seconds), dense_route(gather_seconds)
    projection_work = 0

    ranked = False
    scaled = ("column",)

    @classmethod
    def parameter_shapes(cls, out_features: int, in_features: int, rank: int) -> dict[str, tuple[int, ...]]:
        return {"column": (max(out_features, in_features),)}

    @classmethod
    def init_(
        cls,
        tensors: Mapping[str, Tensor],
        out_features: int,
        in_features: int,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> None:
        normal_(tensors["column"], (3 * in_features) ** -0.5, generator)

    @classmethod
    def multiply_adds(cls, out_features: int, in_features: int, rank: int, **options: Any) -> float:
        m, n = out_features, in_features
        return 2 * costs.fft_multiply_adds(max(m, n)) + 2 * max(m, n)

    def factors(self) -> list[tuple[Tensor, ...]]:
        m, n = self.shape
        return [(circulants(self.column)[:m, :n],)]

    def materialize(self) -> Tensor:
        return self.to_dense()

    def dense_weight(self) -> Tensor:
        return self.to_dense().contiguous()

    def _matmul(self, x: Tensor) -> Tensor:
        return self.prepare()(x)

    def prepare(self) -> Product:
        m, n = self.shape
        of = ring(max(m, n), n, 1)
        spectrum = of.analyse(self.column)
        return lambda x: leading(of.synthesise(of.analyse(x) * spectrum), m)

    def _rmatmul(self, y: Tensor) -> Tensor:
        m, n = self.shape
        of = ring(max(m, n), n, 1)
        x = of.fold(of.unfold(pad(y, (0, of.m - m))) * conjugate(of.analyse(self.column)))
        return x.clone(memory_format=torch.contiguous_format)  # not a part of a larger one
