"""Low displacement rank with learned subdiagonal operators (LDR-SD)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..functional import closed_rings, cuda, joint, paired_rings, single, split_single, stencil, subdiagonal
from ..functional.reference import krylov_of_ring_reference, subdiagonal_reference
from .base import StructuredMatrix, generators_
from .products import Product, kept_for_autograd


def shift_mean_square(m: int, n: int, rank: int) -> float:
    """Mean of E M_ij^2 = r min(i + 1, j + 1, k) for shifts and generators of variance 1."""
    k = min(m, n)
    squares = (k - 1) * k * (2 * k - 1) // 6  # of sum_{l < k} (m - l) (n - l)
    return rank * (k * m * n - (m + n) * (k * (k - 1) // 2) + squares) / (m * n)


class LDRSubdiagonal(StructuredMatrix, name="ldr_sd"):
    """LDR-SD: M = sum_i K_k(A, g_i) K_k(C, h_i)^T with A and C subdiagonal, plus a corner.

    K_k(A, g) has columns g, Ag, .., A^{k-1} g and k = min(m, n). M - A M C^T has rank at most r. Shifts
    for A and C (where training starts) give Toeplitz-like matrices; learning them bends the diagonals.

    Parameters: `G` (r, m), `H` (r, n), `subdiagonal_A` (m - 1), `corner_A` (1), `subdiagonal_C` (n - 1),
    `corner_C` (1): (m + n)(r + 1) in all. Cost: 2r + 2 real FFTs of length m + n a vector where the
    subdiagonals' products stay within a factor of 32 (in float64 within 2^24), else O(r n log^2 n).

    Options:
        product: "auto" looks at the subdiagonals and chooses, or on a GPU trains through the dense matrix
            without a look, up to 2^26 entries; "convolution" takes the FFTs in float64 without looking,
            which is right while their products stay within a factor of 2^24; "split" takes the product
            that is right for every operator.

    Reference: Thomas, Gu, Dao, Rudra, Ré, "Learning Compressed Transforms with Low Displacement Rank",
    2018.
    """

    opaque = True

    @classmethod
    def parameter_shapes(
        cls, out_features: int, in_features: int, rank: int, *, product: str = "auto"
    ) -> dict[str, tuple[int, ...]]:
        if product not in subdiagonal.PRODUCTS:
            known = ", ".join(subdiagonal.PRODUCTS)
            raise ValueError(f"{cls.__name__}: product must be one of {known}, got {product!r}.")
        return {
            "G": (rank, out_features),
            "H": (rank, in_features),
            "subdiagonal_A": (out_features - 1,),
            "corner_A": (1,),
            "subdiagonal_C": (in_features - 1,),
            "corner_C": (1,),
        }

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
            tensors[f"corner_{side}"].zero_()
        r, m, n = tensors["G"].shape[0], out_features, in_features
        generators_(tensors, shift_mean_square(m, n, r), generator)

    @classmethod
    def draw_operators_(cls, tensors: Mapping[str, Tensor], generator: torch.Generator | None = None) -> None:
        for side in "AC":
            tensors[f"subdiagonal_{side}"].uniform_(0.9, 1.1, generator=generator)
            tensors[f"corner_{side}"].uniform_(-1, 1, generator=generator)

    def _krylov_reference(self, side: str, v: Tensor) -> Tensor:
        s, corner = self.tensors[f"subdiagonal_{side}"], self.tensors[f"corner_{side}"]
        lower = torch.cat((corner.reshape(1), s))
        zero = torch.zeros_like(lower)
        return krylov_of_ring_reference(lower, zero, zero, v, min(self.shape))

    def factors(self) -> list[tuple[Tensor, ...]]:
        return [
            (self._krylov_reference("A", g), self._krylov_reference("C", h).mT)
            for g, h in zip(self.G, self.H, strict=True)
        ]

    def operators(self) -> tuple[Tensor, Tensor]:
        return (
            subdiagonal_reference(self.subdiagonal_A, self.corner_A),
            subdiagonal_reference(self.subdiagonal_C, self.corner_C),
        )

    def _side(self, side: str) -> tuple[Tensor, Tensor, Tensor]:
        """The subdiagonal (m - 1,), the corner () and the start vectors (r, m), as the products take them."""
        v = self.tensors["G" if side == "A" else "H"]
        return self.tensors[f"subdiagonal_{side}"], self.tensors[f"corner_{side}"].reshape(()), v

    def _through(self, first: str, second: str, x: Tensor) -> Tensor:
        return joint.product(self._side(second), self._side(first), x, self.options["product"])

    def _matmul(self, x: Tensor) -> Tensor:
        return self._through("C", "A", x)

    def _rmatmul(self, y: Tensor) -> Tensor:
        return self._through("A", "C", y)

    def prepare(self) -> Product:
        others = kept_for_autograd(self._prepare_batches)
        if self._goes_in_pairs():
            pairs = paired_rings.prepare(self._side("A"), self._side("C"))
            return lambda x: paired_rings.matmul(pairs, x) if paired_rings.serves(x) else others()(x)
        compiled = self._prepare_compiled()
        if compiled is None:
            return self._prepare_batches()
        return lambda x: compiled(x) if single.serves(x) else others()(x)

    def _goes_in_pairs(self) -> bool:
        on_gpu = self.device.type == "cuda" and cuda.unavailable() is None
        return on_gpu and paired_rings.fits(self._side("A"), self._side("C"), self.options["product"])

    def path(self, batch: int = 1) -> str:
        """How a prepared product multiplies so many vectors, in two words."""
        wide = self.promoted()
        if batch > 1 and wide._goes_in_pairs():
            return "complex pairs"
        return " + ".join(dict.fromkeys(wide._path_of(side) for side in "CA"))

    def _path_of(self, side: str) -> str:
        scales = subdiagonal.convolution_scales(self._side(side)[0], self.options["product"])
        return "split" if scales is None else f"convolution {str(scales.dtype).removeprefix('torch.')}"

    def _prepare_compiled(self) -> Product | None:
        A, C, how = self._side("A"), self._side("C"), self.options["product"]
        if not stencil.serves(*A, *C):
            return None
        P_A, P_C = (subdiagonal.convolution_scales(side[0], how) for side in (A, C))
        if P_A is None or P_C is None:
            left, right = (split_single.prepare(s, min(self.shape), transposed=s is C) for s in (A, C))
            if left is None or right is None:
                return None
            return lambda x: split_single.matmul(left, split_single.rmatmul(right, x))
        rings = single.prepare(A, C, torch.promote_types(P_A.dtype, P_C.dtype))
        if rings is not None:
            return partial(single.matmul, rings)
        return partial(joint.matmul, joint.prepare(A, C, (P_A, P_C)))

    def _prepare_batches(self) -> Product:
        k, how = min(self.shape), self.options["product"]
        closed = closed_rings.prepare(self._side("A"), self._side("C"), how)
        if closed is not None:
            return partial(closed_rings.matmul, closed)
        left = subdiagonal.krylov_prepare(*self._side("A"), k, how)
        right = subdiagonal.krylov_prepare(*self._side("C"), k, how)
        return lambda x: subdiagonal.prepared_matmul(left, subdiagonal.prepared_rmatmul(right, x))
