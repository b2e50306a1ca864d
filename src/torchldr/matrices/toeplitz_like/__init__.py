"""Toeplitz-like matrices: LDR with fixed shifts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core.choice import fft_multiply_adds
from ...core.contract import Random, Weights
from ...core.matrix import StructuredMatrix, generators_
from ...core.owned import owned
from ...functional.fft import conjugate, contract_rank
from ...functional.reference import krylov_of_shift_reference, shift_reference
from ...functional.ring import Ring, ring
from ...functional.stein import stein_matrix
from ...functional.subdiagonal import trained_pair
from ...functional.subdiagonal.guard import Side


def corner_sign(m: int, n: int) -> int:
    """a of the pair (Z_a, Z_{-a}): 1 where the power of two in m is at most that in n, else -1.

    With the other sign K(Z_a, g) K(Z_{-a}, h)^T does not reach every Toeplitz-like matrix: shapes such
    as 784 -> 512 would have parameters without effect.
    """
    return 1 if (m & -m) <= (n & -n) else -1


class ToeplitzLike(StructuredMatrix, name="toeplitz_like"):
    """Toeplitz-like: M = sum_i K_k(Z_a, g_i) K_k(Z_{-a}, h_i)^T, k = min(m, n).

    Z_f shifts down by one and brings the last entry back on top, times f; a = 1 where the power of two
    in m is at most that in n, else -1. Toeplitz matrices and their inverses have r = 2, products add.

    Parameters: `G` (r, m), `H` (r, n). Cost: 2r + 2 real FFTs a vector, of lengths m and n where those
    are products of 2, 3, 5 and 7 (else of padded lengths m + k and n + k).

    Reference: Kailath, Kung, Morf, "Displacement ranks of matrices and linear equations", 1979;
    Sindhwani, Sainath, Kumar, "Structured transforms for small-footprint deep learning", 2015.
    """

    look = "#009E73", "^"
    at_once = ("_materialize",)

    cpu_frozen = 5.7
    cpu_training = 16.0, 128.0, 1e7
    gpu_frozen = 4.5, 4.5e9
    gpu_training = 12.0, 1.25e11
    projection_work = 1
    compresses = True

    @classmethod
    def init_(
        cls, tensors: Weights, out_features: int, in_features: int, generator: Random = None, **options: Any
    ) -> None:
        generators_(tensors, tensors["G"].shape[-2] * min(out_features, in_features), generator)

    def _rings(self) -> tuple[Ring, Ring]:
        m, n = self.shape
        a, k = corner_sign(m, n), min(m, n)
        return ring(m, k, a), ring(n, k, -a)

    @classmethod
    def multiply_adds(cls, out_features: int, in_features: int, rank: int, **options: Any) -> float:
        m, n = out_features, in_features
        transforms = fft_multiply_adds(m) + fft_multiply_adds(n)
        return (rank + 1) * transforms + 2 * rank * (m + n)

    def fast_in_words(self) -> str:
        m, n = self.shape[-2:]
        return f"{2 * self.G.shape[-2] + 2} real FFTs of lengths {m} and {n} a row"

    def _made_in_words(self) -> str:
        return " by a scan"

    def factors(self) -> list[tuple[Tensor, ...]]:
        a, k = corner_sign(*self.shape), min(self.shape)
        left, right = krylov_of_shift_reference(self.G, a, k), krylov_of_shift_reference(self.H, -a, k)
        return list(zip(left, right.mT, strict=True))

    def operators(self) -> tuple[Tensor, Tensor]:
        m, n = self.shape
        a = corner_sign(m, n)
        A, C = shift_reference(m, a, self.dtype), shift_reference(n, -a, self.dtype)
        return A.to(self.device), C.to(self.device)

    def _matmul(self, x: Tensor) -> Tensor:
        if trained_pair.takes(self.out_features, self.in_features, x):  # square: a is 1
            return trained_pair.product_of_shifts(self.G, self.H, 1, x)
        (left, right), G, H = self._rings(), owned(self.G), owned(self.H)
        z = right.fold(right.unfold(x).unsqueeze(-2) * conjugate(right.analyse(H)))
        return left.synthesise(contract_rank(left.analyse(z), left.analyse(G)))

    def _sides(self) -> tuple[Side, Side]:
        """The shifts as subdiagonal operators with their start vectors."""
        a = self.G.new_full((), corner_sign(*self.shape))  # made where it is needed: no wait for a copy
        left, right = ((torch.ones_like(V[0, 1:]), f, V) for V, f in ((self.G, a), (self.H, -a)))
        return left, right

    def _reads(self, x: Tensor) -> bool:
        return trained_pair.takes(self.out_features, self.in_features, x)

    def _materialize(self) -> Tensor:
        return self.dense_in(self.dtype)

    def dense_in(self, dtype: torch.dtype) -> Tensor:
        f = corner_sign(self.out_features, self.in_features)
        return stein_matrix((f, None), (-f, None), self.tensors["G"], self.tensors["H"], dtype)

    def _rmatmul(self, y: Tensor) -> Tensor:
        if trained_pair.takes(self.out_features, self.in_features, y):
            return trained_pair.product_of_shifts(self.H, self.G, -1, y)
        left, right = self._rings()
        z = left.fold(left.unfold(y).unsqueeze(-2) * conjugate(left.analyse(self.G)))
        return right.synthesise(contract_rank(right.analyse(z), right.analyse(self.H)))
