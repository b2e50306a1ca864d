"""Low displacement rank with learned subdiagonal operators (LDR-SD)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...core.choice import fft_multiply_adds
from ...core.contract import Random, Weights
from ...core.matrix import StructuredMatrix, generators_
from ...core.storage import AROUND_ONE, FLOAT, Storage
from ...functional.reference import krylov_of_cycle_reference, rate_reference, subdiagonal_reference
from ...functional.stein import Ring, stein_matrix
from ...functional.subdiagonal import trained_pair
from ...functional.subdiagonal.guard import Side
from ...functional.subdiagonal.product import product

_STORED = {"subdiagonal": AROUND_ONE, "corner": FLOAT}


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
    subdiagonals' products stay within a factor of 32 (2^30 with FFTs in float64), else O(r n^2).

    Reference: Thomas, Gu, Dao, Rudra, Ré, "Learning Compressed Transforms with Low Displacement Rank",
    2018.
    """

    look = "#0072B2", "o"
    at_once = ("_materialize",)

    retired: ClassVar[Mapping[str, Sequence[Any]]] = {"product": ("auto", "convolution", "exact")}
    stored: ClassVar[Mapping[str, Storage]] = {
        f"{part}_{side}": how for side in "AC" for part, how in _STORED.items()
    }
    cpu_frozen = 2.8
    cpu_training = 2.8, 32.0, 3e6
    gpu_frozen = 2.5, 4.5e9
    gpu_training = 6.0, 1.3e11
    projection_work = 12
    compresses = True

    @classmethod
    def parameter_shapes(cls, out_features: int, in_features: int, rank: int) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {"G": (rank, out_features), "H": (rank, in_features)}
        for side, size in (("A", out_features), ("C", in_features)):
            shapes |= {f"subdiagonal_{side}": (size - 1,), f"corner_{side}": (1,)}
        return shapes

    @classmethod
    def init_(
        cls, tensors: Weights, out_features: int, in_features: int, generator: Random = None, **options: Any
    ) -> None:
        for side in "AC":
            tensors[f"subdiagonal_{side}"].fill_(1)
            tensors[f"corner_{side}"].zero_()
        rank = tensors["G"].shape[-2]
        generators_(tensors, shift_mean_square(out_features, in_features, rank), generator)

    @classmethod
    def draw_operators_(cls, tensors: Weights, generator: Random = None) -> None:
        for side in "AC":
            tensors[f"subdiagonal_{side}"].uniform_(0.9, 1.1, generator=generator)
            tensors[f"corner_{side}"].uniform_(-1, 1, generator=generator)

    @classmethod
    def multiply_adds(cls, out_features: int, in_features: int, rank: int, **options: Any) -> float:
        m, n = out_features, in_features
        length = 1 << (m + n - 2).bit_length()  # C pads to a power of two from m + n - 1 on
        return (2 * rank + 2) * fft_multiply_adds(length) + 2 * rank * (m + n)

    def factors(self) -> list[tuple[Tensor, ...]]:
        k, rate = min(self.shape), rate_reference([self.subdiagonal_A], [self.subdiagonal_C])
        A = torch.cat((self.corner_A.reshape(1), self.subdiagonal_A))
        C = torch.cat((self.corner_C.reshape(1), self.subdiagonal_C))
        left = krylov_of_cycle_reference(A, self.G, k, rate)
        right = krylov_of_cycle_reference(C, self.H, k, -rate)
        return list(zip(left, right.mT, strict=True))

    def operators(self) -> tuple[Tensor, Tensor]:
        return (
            subdiagonal_reference(self.subdiagonal_A, self.corner_A),
            subdiagonal_reference(self.subdiagonal_C, self.corner_C),
        )

    def fast_in_words(self) -> str:
        m, n = self.shape[-2:]
        return f"{2 * self.G.shape[-2] + 2} real FFTs of length about {m + n} a row"

    def _made_in_words(self) -> str:
        return " by a scan"

    def rings(self) -> tuple[Ring, Ring]:
        """Corner and subdiagonal of A and of C."""
        t = self.tensors
        return (t["corner_A"], t["subdiagonal_A"]), (t["corner_C"], t["subdiagonal_C"])

    def _sides(self) -> tuple[Side, Side]:
        """Subdiagonal, corner () and start vectors of A and of C."""
        t = self.tensors
        A = t["subdiagonal_A"], t["corner_A"].squeeze(-1), t["G"]
        return A, (t["subdiagonal_C"], t["corner_C"].squeeze(-1), t["H"])

    def _matmul(self, x: Tensor) -> Tensor:
        return product(*self._sides(), x)

    def _rmatmul(self, y: Tensor) -> Tensor:
        return product(*self._sides()[::-1], y)

    def _reads(self, x: Tensor) -> bool:
        return trained_pair.takes(self.out_features, self.in_features, x)

    def _materialize(self) -> Tensor:
        return self.dense_in(self.dtype)

    def dense_in(self, dtype: torch.dtype) -> Tensor:
        return stein_matrix(*self.rings(), self.tensors["G"], self.tensors["H"], dtype)
