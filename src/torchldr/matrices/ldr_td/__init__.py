"""Low displacement rank with learned tridiagonal operators (LDR-TD)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...core.choice import Use
from ...core.contract import Random, Weights
from ...core.matrix import StructuredMatrix, generators_
from ...core.owned import owned
from ...core.products import allows_tf32
from ...core.storage import AROUND_ONE, AROUND_ZERO, FLOAT, Storage
from ...functional import krylov_dense, tridiagonal
from ...functional.krylov import krylov_matrices
from ...functional.reference import krylov_of_ring_reference, rate_reference, tridiagonal_reference
from ...functional.stream import product
from ..ldr_sd import shift_mean_square
from .operators import operator_report

Ring = tuple[Tensor, Tensor, Tensor]
_STORED = {"subdiagonal": AROUND_ONE, "diagonal": AROUND_ZERO, "superdiagonal": AROUND_ZERO, "corners": FLOAT}


class LDRTridiagonal(StructuredMatrix, name="ldr_td"):
    """LDR-TD: M = sum_i K_k(A, g_i) K_k(C, h_i)^T with A and C tridiagonal, plus two corners.

    As LDR-SD, with a diagonal, a superdiagonal and a second corner learned too. The class contains
    LDR-SD, and with suitable operators Toeplitz-, Hankel-, Vandermonde- and Cauchy-like matrices.

    Parameters: those of LDR-SD without `corner_*`, and `diagonal_A` (m), `superdiagonal_A` (m - 1),
    `corners_A` (2: top right, bottom left), likewise C: (m + n)(r + 3) in all. Where a corner meets
    another entry (m <= 2) they add. Cost: O(r (m + n) k) for the Krylov columns, compiled on a CPU,
    and as much a vector in matrix products; never an m x n matrix in inference.

    Options:
        normalize: divide A and C by their largest absolute row sum where it exceeds 1. Powers of A
            otherwise grow like its spectral radius, and run in float64 where float32 would lose them.
            Use it for layers of thousands of features, or when a superdiagonal grows past some tenths.

    Reference: Thomas, Gu, Dao, Rudra, Ré, "Learning Compressed Transforms with Low Displacement Rank",
    2018.
    """

    look = "#D55E00", "D"

    at_once = "_matmul", "_rmatmul", "_materialize"
    retired: ClassVar[Mapping[str, Sequence[Any]]] = {"product": ("auto", "stencil", "port")}
    stored: ClassVar[Mapping[str, Storage]] = {
        f"{part}_{side}": how for side in "AC" for part, how in _STORED.items()
    }
    projection_work = 48

    @classmethod
    def parameter_shapes(
        cls, out_features: int, in_features: int, rank: int, *, normalize: bool = False
    ) -> dict[str, tuple[int, ...]]:
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
        part = {name: owned(t) for name, t in self.tensors.items() if name.endswith(side)}
        top, bottom = part[f"corners_{side}"].split(1, -1)
        lower = torch.cat((top, part[f"subdiagonal_{side}"]), -1)
        upper = torch.cat((part[f"superdiagonal_{side}"], bottom), -1)
        ring = lower, part[f"diagonal_{side}"], upper
        if not self.options["normalize"]:
            return ring
        scale = tridiagonal.row_sum_scale(*ring)
        scale = scale.unsqueeze(-1)
        return ring[0] / scale, ring[1] / scale, ring[2] / scale

    @classmethod
    def multiply_adds(cls, out_features: int, in_features: int, rank: int, **options: Any) -> float:
        return rank * (out_features + in_features) * min(out_features, in_features)

    def factors(self) -> list[tuple[Tensor, ...]]:
        k, A, C = min(self.shape), self._ring("A"), self._ring("C")
        rate = rate_reference(*([t[1:] for t in ring] for ring in (A, C)))  # corners are passed but rarely
        left = krylov_of_ring_reference(*A, self.G, k, rate)
        right = krylov_of_ring_reference(*C, self.H, k, -rate)
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
        """Describe the two operators: a row of plain numbers for A and one for C, for a table by epoch.

        Args:
            spectrum: whether to compute the spectral radius, of operators of up to 1024 rows.

        Returns:
            Rows for A and C of
                subdiagonal, diagonal, superdiagonal, corners: least and largest entry,
                row_sum: the largest absolute row sum,
                growth: the mean factor of |A^t v| a step, over k = min(m, n) steps,
                spectral_radius: where it was computed, else None.

        Waits for the device.
        """
        return operator_report(self, spectrum=spectrum)

    def _balanced(self) -> tuple[tridiagonal.Operator, tridiagonal.Operator]:
        """`both_operators` without a scale in A that C cancels."""
        A, C = tridiagonal.balanced(self._ring("A"), self._ring("C"))
        return (*A, self.tensors["G"]), (*C, self.tensors["H"])

    @classmethod
    def fast_pays(cls, use: Use) -> bool:
        """Both products make the Krylov columns; the dense matrix is then a product of them."""
        if not use.gpu:
            columns, entries = use.rank * min(use.m, use.n), use.m * use.n
            return not use.frozen and columns * (use.m + use.n) * use.rows < entries * (use.rows + columns)
        made = use.rank * use.size**2  # the dense matrix takes n times as long, the columns n
        return not use.frozen and use.rank * use.rows < use.size and made > (8e7 if use.exact else 4e8)

    def fast_in_words(self) -> str:
        (m, n), r = self.shape[-2:], self.G.shape[-2]
        columns = r * min(m, n)
        products = f"{columns * (m + n):,} multiply-adds a row"
        return f"make {columns} Krylov columns of either operator, then {products}"

    def _made_in_words(self) -> str:
        return " of Krylov columns"

    def _materialize(self) -> Tensor:
        return self.dense_in(self.dtype)

    def dense_in(self, dtype: torch.dtype) -> Tensor:
        """By Krylov matrices and one product of them, r k m n multiply-adds."""
        if self.in_features == self.out_features and krylov_dense.takes(self.tensors["G"]):
            rough = dtype.itemsize < 4 or allows_tf32("cuda", dtype)
            return krylov_dense.krylov_dense(self._rings(), dtype, rough=rough)
        A, C = self.promoted()._balanced()
        k = min(self.out_features, self.in_features)
        K_A, K_C = krylov_matrices(*A, k), krylov_matrices(*C, k)
        return (K_A.flatten(-3, -2).mT @ K_C.flatten(-3, -2)).to(dtype)

    def _rings(self) -> Tensor:
        """Both operators of a square matrix with their generators, as `krylov_dense` takes them."""
        part, sides = {name: owned(t) for name, t in self.tensors.items()}, []
        for side, V in (("A", part["G"]), ("C", part["H"])):
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

    def _matmul(self, x: Tensor) -> Tensor:
        return product(*self._balanced(), x)

    def _rmatmul(self, y: Tensor) -> Tensor:
        return product(*self._balanced()[::-1], y)
