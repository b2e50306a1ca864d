"""Fastfood: diagonals between Hadamard transforms."""

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
from ...functional.orthogonal import LARGEST_KEPT, hadamard_matrix, hadamard_reference, hadamard_transform


def _seconds(M: Any, call: Call) -> float:
    size = _power_of_two(max(M.shape))
    return costs.backward(call, costs.passes(call, call.batch * size, 2 * size.bit_length()))


def _dense_seconds(M: Any, call: Call) -> float:
    m, n = M.shape
    if max(m, n) > LARGEST_KEPT:
        return _seconds(M, call._replace(batch=n, kept=False))
    return costs.backward(call, costs.gemm(call, max(m, n), m, n) + costs.passes(call, m * n, 4))


class Fastfood(StructuredMatrix, name="fastfood"):
    """Fastfood: M = S Had D Perm Had B.

    Had is the orthonormal Hadamard transform of the next power of two p >= N = max(m, n), padded and
    cropped to N; S, D and B are diagonal, Perm a permutation of N drawn once.

    Parameters: `S` (m), `D` (N), `B` (n); `permutation` (N) is kept in the state_dict. Cost: two
    Hadamard transforms a vector, O(p log p).

    Reference: Le, Sarlós, Smola, "Fastfood", 2013; Yang et al., "Deep fried convnets", 2015.
    """

    look = "#888888", "*"
    fuses = True

    ROUTES = own_route("hadamard", _seconds), dense_route(_dense_seconds)
    projection_work = 4

    ranked = False
    scaled = ("S",)
    drawn = ("permutation",)

    @classmethod
    def parameter_shapes(cls, out_features: int, in_features: int, rank: int) -> dict[str, tuple[int, ...]]:
        return {"S": (out_features,), "D": (max(out_features, in_features),), "B": (in_features,)}

    @classmethod
    def constants(
        cls,
        out_features: int,
        in_features: int,
        rank: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> dict[str, Tensor]:
        size = max(out_features, in_features)
        where = generator.device if generator is not None else "cpu"
        drawn = torch.randperm(size, generator=generator, device=where)
        return {"permutation": drawn.to(device)}

    @classmethod
    def init_(
        cls,
        tensors: Mapping[str, Tensor],
        out_features: int,
        in_features: int,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> None:
        n, size = in_features, max(out_features, in_features)
        tensors["B"].bernoulli_(0.5, generator=generator).mul_(2).sub_(1)
        normal_(tensors["D"], 1.0, generator)
        tensors["S"].fill_(_power_of_two(size) / (3 * n * size) ** 0.5)

    @classmethod
    def multiply_adds(cls, out_features: int, in_features: int, rank: int, **options: Any) -> float:
        m, n = out_features, in_features
        p = _power_of_two(max(m, n))
        return p * max(p.bit_length() - 1, 0) + 3 * p

    def factors(self) -> list[tuple[Tensor, ...]]:
        m, n = self.shape
        size = max(m, n)
        H = hadamard_reference(_power_of_two(size), self.dtype).to(self.device)
        inner = H[:size, :n][self.permutation]
        return [(torch.diag(self.S), H[:m, :size], torch.diag(self.D), inner, torch.diag(self.B))]

    def _materialize(self) -> Tensor:
        m, n = self.shape
        size = max(m, n)
        if size > LARGEST_KEPT:
            return super()._materialize()
        H = hadamard_matrix(_power_of_two(size), self.dtype, self.device)
        inner = H[:size, :n].index_select(0, self.permutation) * self.D.unsqueeze(-1)
        return self.S.unsqueeze(-1) * (H[:m, :size] @ inner) * self.B

    def _matmul(self, x: Tensor) -> Tensor:
        m, n = self.shape
        size = max(m, n)
        y = _padded_hadamard(x * self.B, size)[..., :size][..., self.permutation]
        return _padded_hadamard(y * self.D, size)[..., :m] * self.S

    def _rmatmul(self, y: Tensor) -> Tensor:
        m, n = self.shape
        size = max(m, n)
        x = _padded_hadamard(y * self.S, size)[..., :size] * self.D
        return _padded_hadamard(x[..., self.permutation.argsort()], size)[..., :n] * self.B


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _padded_hadamard(x: Tensor, size: int) -> Tensor:
    return hadamard_transform(pad(x, (0, _power_of_two(size) - x.shape[-1])))
