"""Cauchy-like matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...core import costs
from ...core.dense_route import dense_route, own_route
from ...core.matrix import StructuredMatrix, generators_
from ...core.routes import Call
from ...core.storage import FLOAT, Storage
from ...functional.cauchy import TILE, cauchy_matmul, cauchy_reference


def interleaved_nodes(
    m: int, n: int, dtype: torch.dtype, device: torch.device | str | None = None
) -> tuple[Tensor, Tensor]:
    """m + n equally spaced points of (-1, 1), dealt out evenly to s (m,) and t (n,)."""
    p = torch.arange(m + n, device="cpu")  # whatever the default device is: values are needed
    mine = (p + 1) * m // (m + n) > p * m // (m + n)
    points = ((2 * p + 1).to(torch.float64) / (m + n) - 1).to(dtype=dtype, device=device)
    return points[mine], points[~mine]


def _seconds(M: Any, call: Call) -> float:
    (m, n), r, b = M.shape, M.rank, call.batch
    count = -(-m // TILE)
    tiles = count * (costs.passes(call, TILE * n, 3) + costs.gemm(call, b * r, TILE, n))
    return costs.backward(call, tiles + costs.passes(call, b * r * (m + n), 2))


def _dense_seconds(M: Any, call: Call) -> float:
    m, n = M.shape
    return costs.backward(call, costs.passes(call, m * n, 4) + costs.gemm(call, M.rank, m, n))


class CauchyLike(StructuredMatrix, name="cauchy_like"):
    """Cauchy-like: M[i, j] = sum_k G[k, i] H[k, j] / (s_i - t_j).

    Parameters: `G` (r, m), `H` (r, n); `s` (m) and `t` (n) interleave on (-1, 1) and so cannot meet, or
    are learned. Cost: O(r m n) operations a vector in O(m + n) memory.

    Options:
        learn_nodes: make `s` and `t` parameters. Nothing then keeps them apart but the loss.
    """

    ROUTES = own_route("tiles", _seconds), dense_route(_dense_seconds)
    stored: ClassVar[Mapping[str, Storage]] = {"s": FLOAT, "t": FLOAT}
    projection_work = 1

    @classmethod
    def parameter_shapes(
        cls, out_features: int, in_features: int, rank: int, *, learn_nodes: bool = False
    ) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {"G": (rank, out_features), "H": (rank, in_features)}
        return {**shapes, "s": (out_features,), "t": (in_features,)} if learn_nodes else shapes

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
        if options["learn_nodes"]:
            return {}
        s, t = interleaved_nodes(out_features, in_features, torch.promote_types(dtype, torch.float32), device)
        return {"s": s, "t": t}

    @classmethod
    def init_(
        cls,
        tensors: Mapping[str, Tensor],
        out_features: int,
        in_features: int,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> None:
        r, m, n = tensors["G"].shape[-2], out_features, in_features
        s, t = interleaved_nodes(m, n, torch.float64)
        if options.get("learn_nodes"):
            tensors["s"].copy_(s)
            tensors["t"].copy_(t)
        generators_(tensors, r, generator)
        # Row i of M has mean square r / (s_i - t_j)^2, averaged over j: even the rows out.
        mean = torch.empty_like(s)
        for tile, part in zip(s.split(TILE), mean.split(TILE), strict=True):
            part.copy_(cauchy_reference(tile, t).square().mean(-1))
        tensors["G"].mul_(mean.rsqrt().to(tensors["G"]))

    @classmethod
    def multiply_adds(cls, out_features: int, in_features: int, rank: int, **options: Any) -> float:
        m, n = out_features, in_features
        return rank * m * n

    def factors(self) -> list[tuple[Tensor, ...]]:
        C = cauchy_reference(self.s, self.t)
        return [(g.unsqueeze(-1) * C * h,) for g, h in zip(self.G, self.H, strict=True)]

    def _materialize(self) -> Tensor:
        return (self.G.mT @ self.H) * cauchy_reference(self.s, self.t)

    def _matmul(self, x: Tensor) -> Tensor:
        z = x.unsqueeze(-2) * self.H
        y = cauchy_matmul(self.s, self.t, z.flatten(0, 1)).unflatten(0, z.shape[:2])
        return (y * self.G).sum(-2)

    def _rmatmul(self, y: Tensor) -> Tensor:
        z = y.unsqueeze(-2) * self.G
        x = cauchy_matmul(self.t, self.s, z.flatten(0, 1)).unflatten(0, z.shape[:2])
        return -(x * self.H).sum(-2)
