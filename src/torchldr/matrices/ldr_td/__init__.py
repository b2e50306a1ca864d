"""Low displacement rank with learned tridiagonal operators (LDR-TD)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...core import stacks
from ...core.checks import check_choices
from ...core.contract import Random, Weights
from ...core.matrix import StructuredMatrix, generators_
from ...core.products import allows_tf32
from ...core.routes import is_traced
from ...core.storage import AROUND_ONE, AROUND_ZERO, FLOAT, Storage
from ...functional import krylov_dense, stencil, tridiagonal
from ...functional.reference import krylov_of_ring_reference, tridiagonal_reference
from ...kernels import cuda
from ...kernels.cuda.krylov import entries
from ..ldr_sd import shift_mean_square
from .operators import operator_report
from .routes import HELD, PRODUCTS, ROUTES

Ring = tuple[Tensor, Tensor, Tensor]
_STORED = {"subdiagonal": AROUND_ONE, "diagonal": AROUND_ZERO, "superdiagonal": AROUND_ZERO, "corners": FLOAT}


class LDRTridiagonal(StructuredMatrix, name="ldr_td"):
    """LDR-TD: M = sum_i K_k(A, g_i) K_k(C, h_i)^T with A and C tridiagonal, plus two corners.

    As LDR-SD, with a diagonal, a superdiagonal and a second corner learned too. The class contains
    LDR-SD, and with suitable operators Toeplitz-, Hankel-, Vandermonde- and Cauchy-like matrices.

    Parameters: those of LDR-SD without `corner_*`, and `diagonal_A` (m), `superdiagonal_A` (m - 1),
    `corners_A` (2: top right, bottom left), likewise C: (m + n)(r + 3) in all. Where a corner meets
    another entry (m <= 2) they add. Cost: O(r (m + n) k) for the Krylov columns, compiled on a CPU,
    and as much a vector in matrix products; never an m x n matrix in inference. For kept products of some
    thousands of features the port product takes O(c (r + b) n log^2 n) for b vectors, where a bound on its
    error allows it (`functional.port.acceptance`).

    Options:
        product: for products in float32 that need no gradient, of a matrix that is kept (a layer in
            inference): "auto" takes the port product where it is accepted and cheaper, "port" wherever it is
            accepted, at any size, "stencil" never. All others take the stencil or the dense matrix.
        normalize: divide A and C by their largest absolute row sum where it exceeds 1. Powers of A
            otherwise grow like its spectral radius, and run in float64 where float32 would lose them:
            take it for layers of thousands of features, or when a superdiagonal grows past some tenths.

    Reference: Thomas, Gu, Dao, Rudra, Ré, "Learning Compressed Transforms with Low Displacement Rank",
    2018.
    """

    look = "#D55E00", "D"

    at_once = ("_materialize",)
    opaque = True
    stored: ClassVar[Mapping[str, Storage]] = {
        f"{part}_{side}": how for side in "AC" for part, how in _STORED.items()
    }
    ROUTES = ROUTES
    projection_work = 48

    @classmethod
    def parameter_shapes(
        cls, out_features: int, in_features: int, rank: int, *, normalize: bool = False, product: str = "auto"
    ) -> dict[str, tuple[int, ...]]:
        check_choices(cls.__name__, product=(product, PRODUCTS))
        shapes: dict[str, tuple[int, ...]] = {"G": (rank, out_features), "H": (rank, in_features)}
        for side, size in (("A", out_features), ("C", in_features)):
            shapes[f"subdiagonal_{side}"] = (size - 1,)
            shapes[f"diagonal_{side}"] = (size,)
            shapes[f"superdiagonal_{side}"] = (size - 1,)
            shapes[f"corners_{side}"] = (2,)
        return shapes

    @classmethod
    def init_(
        cls, tensors: Weights, out_features: int, in_features: int, generator: Random = None, **options: Any
    ) -> None:
        for side in "AC":
            tensors[f"subdiagonal_{side}"].fill_(1)
            for part in ("diagonal", "superdiagonal", "corners"):
                tensors[f"{part}_{side}"].zero_()
        rank = tensors["G"].shape[-2]
        generators_(tensors, shift_mean_square(out_features, in_features, rank), generator)

    @classmethod
    def draw_operators_(cls, tensors: Weights, generator: Random = None) -> None:
        for side in "AC":
            tensors[f"subdiagonal_{side}"].uniform_(0.95, 1.05, generator=generator)
            for part in ("diagonal", "superdiagonal", "corners"):
                tensors[f"{part}_{side}"].uniform_(-0.05, 0.05, generator=generator)

    def _ring(self, side: str) -> Ring:
        part = self.tensors
        top, bottom = part[f"corners_{side}"].split(1)
        lower = torch.cat((top, part[f"subdiagonal_{side}"]))
        upper = torch.cat((part[f"superdiagonal_{side}"], bottom))
        ring = lower, part[f"diagonal_{side}"], upper
        if not self.options["normalize"]:
            return ring
        scale = tridiagonal.row_sum_scale(*ring)
        return ring[0] / scale, ring[1] / scale, ring[2] / scale

    @classmethod
    def multiply_adds(cls, out_features: int, in_features: int, rank: int, **options: Any) -> float:
        return rank * (out_features + in_features) * min(out_features, in_features)

    def factors(self) -> list[tuple[Tensor, ...]]:
        k = min(self.shape)
        left = krylov_of_ring_reference(*self._ring("A"), self.G, k)
        right = krylov_of_ring_reference(*self._ring("C"), self.H, k)
        return list(zip(left, right.mT, strict=True))

    def operators(self) -> tuple[Tensor, Tensor]:
        def dense(lower: Tensor, diagonal: Tensor, upper: Tensor) -> Tensor:
            corners = torch.stack((lower[0], upper[-1]))
            return tridiagonal_reference(lower[1:], diagonal, upper[:-1], corners)

        return dense(*self._ring("A")), dense(*self._ring("C"))

    def both_operators(self) -> tuple[tridiagonal.Operator, tridiagonal.Operator]:
        """Lower, diagonal, upper and start vectors of A and of C."""
        return (*self._ring("A"), self.G), (*self._ring("C"), self.H)

    def operator_report(self, *, spectrum: bool = True) -> list[dict[str, Any]]:
        """What the two operators are like: a row of plain numbers for A and one for C, for a table by epoch.

        Args:
            spectrum: whether to compute the spectral radius, of operators of up to 1024 rows.

        Returns:
            Rows for A and C of
                subdiagonal, diagonal, superdiagonal, corners: least and largest entry,
                row_sum: the largest absolute row sum,
                growth: the mean factor of |A^t v| a step, over k = min(m, n) steps,
                spectral_radius: where it was computed, else None,
                oversampling: that of the layer's port product, or None where it takes the stencil,
                bound, reason: of the layer's product (`acceptance.Verdict`).

        Waits for the device.
        """
        return operator_report(self, spectrum=spectrum)

    def _rings(self) -> Tensor:
        """Both operators of a square matrix with their generators, as `krylov_dense` takes them."""
        part, sides = self.tensors, []
        for side, V in (("A", self.G), ("C", self.H)):
            top, bottom = part[f"corners_{side}"].split(1, -1)
            sides += [part[f"superdiagonal_{side}"], bottom, top, part[f"subdiagonal_{side}"]]
            sides += [part[f"diagonal_{side}"], V.flatten(-2)]
        rings = torch.cat(sides, -1).unflatten(-1, (2, -1, self.in_features))
        if not self.options["normalize"]:
            return rings
        ring, V = rings.to(torch.promote_types(self.dtype, torch.float32)).tensor_split([3], -2)
        upper, lower, diagonal = ring.unbind(-2)
        scale = tridiagonal.row_sum_scale(lower, diagonal, upper)
        return torch.cat((ring / scale[..., None, None], V), -2)

    def dense_in(self, dtype: torch.dtype) -> Tensor:
        if self.in_features != self.out_features or not krylov_dense.serves(self.G):
            return super().dense_in(dtype)
        rough = dtype.itemsize < 4 or allows_tf32("cuda", dtype)
        return krylov_dense.krylov_dense(self._rings(), dtype, rough=rough)

    def _materialize(self) -> Tensor:
        tensors = self.tensors.values()
        loops = stencil.serves(*tensors) and not is_traced(*tensors)
        if self.leading:  # loops make one matrix after the other in less time than vmap all of them
            return (stacks.each if loops else stacks.mapped)(self, LDRTridiagonal._materialize)
        size = entries(self.G.shape[0], self.out_features, self.in_features)
        held = (loops and size <= HELD) or cuda.serves(size, *tensors)
        return self.by_krylov_matrices() if held else super()._materialize()

    def by_krylov_matrices(self) -> Tensor:
        """The dense matrix by one matrix product, 2 r k m n operations."""
        K_A, K_C = (K.flatten(0, 1) for K in tridiagonal.krylov_pair(*self.both_operators()))
        return (K_A.mT @ K_C).to(self.dtype)

    def _matmul(self, x: Tensor) -> Tensor:
        return tridiagonal.product(*self.both_operators(), x)

    def _rmatmul(self, y: Tensor) -> Tensor:
        return tridiagonal.product(*self.both_operators()[::-1], y)
