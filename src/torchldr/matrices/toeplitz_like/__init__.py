"""Toeplitz-like matrices: LDR with fixed shifts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...core import costs
from ...core.contract import Random, Weights
from ...core.dense_route import dense_route, own_route
from ...core.matrix import StructuredMatrix, generators_
from ...core.products import Product
from ...core.routes import Call, Route, untraced
from ...functional import stein_scan
from ...functional.fft import conjugate, contract_rank
from ...functional.reference import krylov_of_shift_reference, shift_reference
from ...functional.ring import Ring, ring
from ...functional.subdiagonal import compiled_pair, cuda_pair
from ...functional.subdiagonal.guard import Side
from ..ldr_sd.routes import compiled_pair_cost, cuda_pair_cost, cuda_product, pair_tried, scan_seconds


def corner_sign(m: int, n: int) -> int:
    """a of the pair (Z_a, Z_{-a}): 1 where the power of two in m is at most that in n, else -1.

    With the other sign K(Z_a, g) K(Z_{-a}, h)^T does not reach every Toeplitz-like matrix: shapes such
    as 784 -> 512 would have parameters without effect.
    """
    return 1 if (m & -m) <= (n & -n) else -1


def _fft_seconds(M: Any, call: Call) -> float:
    (m, n), r, b = M.shape, M.rank, call.batch
    seconds = sum(costs.ffts(call, b * (1 + r), size) for size in (m, n))
    seconds += sum(costs.copies(call, b * r * size, 3, 9) for size in (m, n))
    if not call.kept:
        seconds += sum(costs.ffts(call, r, size) for size in (m, n)) + costs.started(call, 10)
    return costs.backward(call, seconds)


def _dense_seconds(M: Any, call: Call) -> float:
    return scan_seconds(M, call, kernels=4, loops=4, doubling=2)


def _pair_why_not(M: Any, call: Call) -> str | None:
    return untraced(call) or compiled_pair.why_not(*M._sides())


def _cuda_pair_why_not(M: Any, call: Call) -> str | None:
    return untraced(call) or cuda_pair.why_not(M.shape, M.device, M.dtype)


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

    ROUTES = (
        own_route("fft", _fft_seconds),
        dense_route(_dense_seconds),
        Route("compiled_pair", _pair_why_not, compiled_pair_cost, None, lambda M: M._prepare_pair()),
        Route(
            "cuda_pair",
            _cuda_pair_why_not,
            cuda_pair_cost,
            lambda M, *given: M._cuda_product(*given),
            lambda M: M._prepare_cuda_pair(),
            any_dtype=True,
            tried=pair_tried,
        ),
    )
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
        transforms = costs.fft_multiply_adds(m) + costs.fft_multiply_adds(n)
        return (rank + 1) * transforms + 2 * rank * (m + n)

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
        return self.prepare()(x)

    def prepare(self) -> Product:
        left, right = self._rings()
        g_hat, h_hat = left.analyse(self.G), conjugate(right.analyse(self.H))

        def product(x: Tensor) -> Tensor:
            z = right.fold(right.unfold(x).unsqueeze(-2) * h_hat)
            return left.synthesise(contract_rank(left.analyse(z), g_hat))

        return product

    def _sides(self) -> tuple[Side, Side]:
        """The shifts as subdiagonal operators with their start vectors."""
        a = self.G.new_full((), corner_sign(*self.shape))  # made where it is needed: no wait for a copy
        left, right = ((torch.ones_like(V[0, 1:]), f, V) for V, f in ((self.G, a), (self.H, -a)))
        return left, right

    def _prepare_pair(self) -> Product:
        return compiled_pair.kept(*self._sides(), self.dtype)

    def _cuda_product(self, x: Tensor, transposed: bool, bias: Tensor | None = None) -> Tensor:
        A, C = self._sides()
        return cuda_product(self, *((C, A) if transposed else (A, C)), x, bias, math.inf)

    def _prepare_cuda_pair(self) -> Product:
        return cuda_pair.KeptPair(*self._sides())

    def _materialize(self) -> Tensor:
        dense: Tensor = self._stein_sum(stein_scan.stein_sum, self.dtype)
        return dense

    def dense_in(self, dtype: torch.dtype) -> Tensor:
        found = self._stein_sum(stein_scan.stein_by_scan, dtype)
        return super().dense_in(dtype) if found is None else found

    def _stein_sum(self, how: Callable[..., Any], dtype: torch.dtype) -> Any:
        """The dense matrix by one of `stein_scan`'s functions, or None where it does not serve."""
        f, tensors = corner_sign(self.out_features, self.in_features), self.tensors
        return how((f, None), (-f, None), tensors["G"], tensors["H"], dtype)

    def _rmatmul(self, y: Tensor) -> Tensor:
        left, right = self._rings()
        z = left.fold(left.unfold(y).unsqueeze(-2) * conjugate(left.analyse(self.G)))
        return right.synthesise(contract_rank(right.analyse(z), right.analyse(self.H)))
