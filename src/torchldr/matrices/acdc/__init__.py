"""ACDC: diagonals between cosine transforms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...core import costs
from ...core.dense_route import dense_route, own_route
from ...core.matrix import StructuredMatrix, normal_
from ...core.routes import Call
from ...functional.fft import leading
from ...functional.orthogonal import (
    LARGEST_KEPT,
    cosine_matrix,
    cosine_reference,
    cosine_transform,
    inverse_cosine_transform,
)


def _seconds(M: Any, call: Call) -> float:
    size = max(M.shape)
    seconds = 2 * costs.ffts(call, call.batch, size) + costs.passes(call, call.batch * size, 20)
    return costs.backward(call, seconds)


def _dense_seconds(M: Any, call: Call) -> float:
    m, n = M.shape
    if max(m, n) > LARGEST_KEPT:
        return _seconds(M, call._replace(batch=n, kept=False))
    return costs.backward(call, costs.gemm(call, max(m, n), m, n) + costs.passes(call, m * n, 3))


class ACDC(StructuredMatrix, name="acdc"):
    """ACDC: M = A DCT D DCT^{-1}, the leading m x n part of it.

    DCT is the orthonormal cosine transform (DCT-II) of length N = max(m, n), A and D are diagonal.

    Parameters: `A` (m), `D` (N). Cost: two cosine transforms of length N a vector.

    Reference: Moczulski, Denil, Appleyard, de Freitas, "ACDC: a structured efficient linear layer",
    2016.
    """

    ROUTES = own_route("cosine", _seconds), dense_route(_dense_seconds)
    projection_work = 1

    ranked = False
    scaled = ("A",)

    @classmethod
    def parameter_shapes(cls, out_features: int, in_features: int, rank: int) -> dict[str, tuple[int, ...]]:
        return {"A": (out_features,), "D": (max(out_features, in_features),)}

    @classmethod
    def init_(
        cls,
        tensors: Mapping[str, Tensor],
        out_features: int,
        in_features: int,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> None:
        # The entries of DCT D DCT^{-1} have a mean square of 1 / N.
        normal_(tensors["D"], 1.0, generator)
        tensors["A"].fill_((max(out_features, in_features) / (3 * in_features)) ** 0.5)

    @classmethod
    def multiply_adds(cls, out_features: int, in_features: int, rank: int, **options: Any) -> float:
        m, n = out_features, in_features
        return 2 * costs.fft_multiply_adds(max(m, n)) + m + max(m, n)

    def factors(self) -> list[tuple[Tensor, ...]]:
        m, n = self.shape
        C = cosine_reference(max(m, n), self.dtype).to(self.device)
        return [(torch.diag(self.A), C[:m], torch.diag(self.D), C.mT[:, :n])]

    def _materialize(self) -> Tensor:
        m, n = self.shape
        if max(m, n) > LARGEST_KEPT:
            return super()._materialize()
        C = cosine_matrix(max(m, n), self.dtype, self.device)
        return self.A.unsqueeze(-1) * (C[:m] @ (self.D.unsqueeze(-1) * C.mT[:, :n]))

    def _matmul(self, x: Tensor) -> Tensor:
        m, n = self.shape
        spectrum = inverse_cosine_transform(pad(x, (0, max(m, n) - n))) * self.D
        return cosine_transform(spectrum)[..., :m] * self.A

    def _rmatmul(self, y: Tensor) -> Tensor:
        m, n = self.shape
        spectrum = inverse_cosine_transform(pad(y * self.A, (0, max(m, n) - m))) * self.D
        return leading(cosine_transform(spectrum), n)
