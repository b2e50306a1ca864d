"""Low displacement rank with learned tridiagonal operators (LDR-TD)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from ..core import costs
from ..core.dense_route import by_columns, own_route
from ..core.matrix import StructuredMatrix, generators_
from ..core.products import Product, kept_for_autograd
from ..core.routes import Call
from ..functional import cuda, stencil, tridiagonal
from ..functional.reference import krylov_of_ring_reference, tridiagonal_reference
from . import port_keeper
from .ldr_sd import shift_mean_square
from .port_product import PreparedPorts, port_product

Ring = tuple[Tensor, Tensor, Tensor]


def _seconds(M: Any, call: Call) -> float:
    on, (m, n), r = costs.machine(call), M.shape, M.rank
    entries = r * (m + n) * min(m, n)
    return costs.backward(
        call, on.start + costs.wide(call) * entries * (on.stencil + on.multiply * call.batch)
    )


class LDRTridiagonal(StructuredMatrix, name="ldr_td"):
    """LDR-TD: M = sum_i K_k(A, g_i) K_k(C, h_i)^T with A and C tridiagonal, plus two corners.

    As LDR-SD, with a diagonal, a superdiagonal and a second corner learned too. The class contains
    LDR-SD, and with suitable operators Toeplitz-, Hankel-, Vandermonde- and Cauchy-like matrices.

    Parameters: those of LDR-SD without `corner_*`, and `diagonal_A` (m), `superdiagonal_A` (m - 1),
    `corners_A` (2: top right, bottom left), likewise C: (m + n)(r + 3) in all. Where a corner meets
    another entry (m <= 2) they add. Cost: O(r (m + n) k) for the Krylov columns, compiled on a CPU,
    and as much a vector in matrix products; never an m x n matrix in inference. Where k is some
    thousands the port product takes O(c (r + b) n log^2 n) for b vectors, if its certificate allows it.

    Options:
        product: "auto" takes the port product where it is certified and cheaper, "stencil" never, "port"
            wherever it is certified, at any size.
        normalize: divide A and C by their largest absolute row sum where it exceeds 1. Powers of A
            otherwise grow like its spectral radius: take it for layers of thousands of features, or
            when a superdiagonal grows past some tenths.

    Reference: Thomas, Gu, Dao, Rudra, Ré, "Learning Compressed Transforms with Low Displacement Rank",
    2018.
    """

    opaque = True
    OWN = own_route("stencil", _seconds)
    ROUTES = OWN, by_columns(OWN)

    @classmethod
    def parameter_shapes(
        cls,
        out_features: int,
        in_features: int,
        rank: int,
        *,
        normalize: bool = False,
        product: str = "auto",
    ) -> dict[str, tuple[int, ...]]:
        if product not in port_keeper.PRODUCTS:
            known = ", ".join(port_keeper.PRODUCTS)
            raise ValueError(f"{cls.__name__}: product must be one of {known}, got {product!r}.")
        shapes: dict[str, tuple[int, ...]] = {"G": (rank, out_features), "H": (rank, in_features)}
        for side, size in (("A", out_features), ("C", in_features)):
            shapes[f"subdiagonal_{side}"] = (size - 1,)
            shapes[f"diagonal_{side}"] = (size,)
            shapes[f"superdiagonal_{side}"] = (size - 1,)
            shapes[f"corners_{side}"] = (2,)
        return shapes

    @classmethod
    def init_(
        cls,
        tensors: Mapping[str, Tensor],
        out_features: int,
        in_features: int,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> None:
        for side in "AC":
            tensors[f"subdiagonal_{side}"].fill_(1)
            for part in ("diagonal", "superdiagonal", "corners"):
                tensors[f"{part}_{side}"].zero_()
        r, m, n = tensors["G"].shape[0], out_features, in_features
        generators_(tensors, shift_mean_square(m, n, r), generator)

    @classmethod
    def draw_operators_(cls, tensors: Mapping[str, Tensor], generator: torch.Generator | None = None) -> None:
        for side in "AC":
            tensors[f"subdiagonal_{side}"].uniform_(0.95, 1.05, generator=generator)
            for part in ("diagonal", "superdiagonal", "corners"):
                tensors[f"{part}_{side}"].uniform_(-0.05, 0.05, generator=generator)

    def _ring(self, side: str) -> Ring:
        part = self.tensors
        corners = part[f"corners_{side}"]
        lower = torch.cat((corners[:1], part[f"subdiagonal_{side}"]))
        upper = torch.cat((part[f"superdiagonal_{side}"], corners[1:]))
        ring = lower, part[f"diagonal_{side}"], upper
        if not self.options["normalize"]:
            return ring
        scale = tridiagonal.row_sum_scale(*ring)
        return ring[0] / scale, ring[1] / scale, ring[2] / scale

    def factors(self) -> list[tuple[Tensor, ...]]:
        k, A, C = min(self.shape), self._ring("A"), self._ring("C")
        return [
            (krylov_of_ring_reference(*A, g, k), krylov_of_ring_reference(*C, h, k).mT)
            for g, h in zip(self.G, self.H, strict=True)
        ]

    def operators(self) -> tuple[Tensor, Tensor]:
        def dense(lower: Tensor, diagonal: Tensor, upper: Tensor) -> Tensor:
            corners = torch.stack((lower[0], upper[-1]))
            return tridiagonal_reference(lower[1:], diagonal, upper[:-1], corners)

        return dense(*self._ring("A")), dense(*self._ring("C"))

    def to(self, *args: Any, **kwargs: Any) -> Self:
        converted = super().to(*args, **kwargs)
        if converted.device == self.device:
            converted.__dict__["_lasting"] = self._kept_by()
        return converted

    def _kept_by(self) -> Mapping[str, Tensor]:
        """The tensors by which a choice is kept: of a converted copy those that it was made from."""
        return self.__dict__.get("_lasting", self.tensors)

    @property
    def _sizes(self) -> tuple[int, int]:
        return self.out_features, self.in_features

    def _operators(self) -> tuple[tridiagonal.Operator, tridiagonal.Operator]:
        return (*self._ring("A"), self.G), (*self._ring("C"), self.H)

    def _way(self, x: Tensor) -> port_keeper.Way | None:
        return port_keeper.way(self._kept_by(), self.options, self._sizes, x, self._operators)

    def _matmul(self, x: Tensor) -> Tensor:
        A, C = self._operators()
        way = self._way(x)
        return tridiagonal.product(A, C, x) if way is None else port_product(A, C, x, *way)

    def _rmatmul(self, y: Tensor) -> Tensor:
        A, C = self._operators()
        way = self._way(y)
        return tridiagonal.product(C, A, y) if way is None else port_product(C, A, y, *way.swapped())

    def prepare(self) -> Product:
        if not port_keeper.considered(self.options, self._sizes, self.H):
            return self._matmul
        keeper = port_keeper.keeper(self._kept_by(), self.options)
        keeper.renew(self._kept_by())
        by_port: dict[int, bool] = {}  # by batch size

        @kept_for_autograd
        def ports() -> Product:
            assert keeper.way is not None
            return PreparedPorts(*self._operators(), *keeper.way)

        def product(x: Tensor) -> Tensor:
            if (torch.is_grad_enabled() and x.requires_grad) or not stencil.is_plain(x):
                return self._matmul(x)
            b = x.shape[0]
            if b not in by_port:
                by_port[b] = self._way(x) is not None
            return ports()(x) if by_port[b] else self._matmul(x)

        return product

    def path(self, batch: int = 1) -> str:
        """The product that so many vectors take, in two words, for the timings of the `auto` plan."""
        some = self.promoted()
        way = some._way(some.H[:1].detach().expand(batch, -1))
        if way is not None:
            return f"port {'+'.join(str(c) for c in dict.fromkeys(way.oversampling))}"
        if stencil.serves(some.G):
            return "stencil"
        return "kernel" if cuda.serves(max(self.shape), some.G) else "blocked stencil"

    @classmethod
    def forget(cls, tensors: Mapping[str, Tensor], options: Mapping[str, Any]) -> None:
        """Drop the kept choice of a product: needed only after an edit that no version counts."""
        port_keeper.forget(tensors, options)

    def product_in_use(self) -> str:
        """What is known of the product in use and why, for a layer's repr; empty where it is the stencil."""
        return port_keeper.describe(self._kept_by(), self.options, self._sizes)
