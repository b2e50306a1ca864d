"""Vandermonde-like matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...core.contract import Random, Weights
from ...core.matrix import StructuredMatrix, generators_
from ...core.storage import FLOAT, Storage
from ...functional.columns import column_scan
from ...functional.reference import krylov_of_shift_reference, shift_reference
from ...functional.ring import shift_krylov_matmul, shift_krylov_rmatmul
from ...functional.vandermonde import (
    chebyshev_points,
    vandermonde_matmul,
    vandermonde_reference,
    vandermonde_rmatmul,
)


class VandermondeLike(StructuredMatrix, name="vandermonde_like"):
    """Vandermonde-like: M = sum_i K_n(D, g_i) K_n(Z_0, h_i)^T with D = diag(nodes).

    Equally M = sum_i diag(g_i) V T_i, V[i, j] = node_i^j and T_i the upper triangular Toeplitz matrix
    of h_i: each output is a polynomial of the input's coefficients, evaluated at its node.

    Parameters: `G` (r, m), `H` (r, n); `nodes` (m) are the Chebyshev points of (-1, 1), or learned.
    Cost: O(r m n) operations a vector in O(m + n) memory.

    Options:
        learn_nodes: make `nodes` a parameter.
    """

    look = "#56B4E9", "<"

    stored: ClassVar[Mapping[str, Storage]] = {"nodes": FLOAT}
    cpu_training = 2.8, 256.0, 3e6
    projection_work = 1

    @classmethod
    def parameter_shapes(
        cls, out_features: int, in_features: int, rank: int, *, learn_nodes: bool = False
    ) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {"G": (rank, out_features), "H": (rank, in_features)}
        return {**shapes, "nodes": (out_features,)} if learn_nodes else shapes

    @classmethod
    def constants(
        cls, out_features: int, in_features: int, rank: int, *, dtype: torch.dtype, **options: Any
    ) -> dict[str, Tensor]:
        if options["learn_nodes"]:
            return {}
        wide = torch.promote_types(dtype, torch.float32)
        return {"nodes": chebyshev_points(out_features, wide, options.get("device"))}

    @classmethod
    def init_(
        cls, tensors: Weights, out_features: int, in_features: int, generator: Random = None, **options: Any
    ) -> None:
        r, m, n = tensors["G"].shape[-2], out_features, in_features
        if options.get("learn_nodes"):
            tensors["nodes"].copy_(chebyshev_points(m, tensors["nodes"].dtype))
        generators_(tensors, r, generator)
        # Row i of M has mean square r sum_{l <= j} node_i^{2l}, averaged over j: even the rows out.
        q = chebyshev_points(m, torch.float64).square()
        mean = (1 - q * (1 - q**n) / (n * (1 - q))) / (1 - q)
        tensors["G"].mul_(mean.rsqrt().to(tensors["G"]))

    @classmethod
    def multiply_adds(cls, out_features: int, in_features: int, rank: int, **options: Any) -> float:
        return rank * out_features * in_features

    def fast_in_words(self) -> str:
        m, n = self.shape[-2:]
        r = self.G.shape[-2]
        return f"{2 * r} real FFTs of length {2 * n} and {r} polynomials of {n} terms at {m} nodes a row"

    def factors(self) -> list[tuple[Tensor, ...]]:
        n = self.in_features
        left = self.G.unsqueeze(-1) * vandermonde_reference(self.nodes, n)  # float32 for narrower G
        right = krylov_of_shift_reference(self.H, 0.0, n).mT.to(left.dtype)
        return list(zip(left, right, strict=True))

    def operators(self) -> tuple[Tensor, Tensor]:
        return torch.diag(self.nodes), shift_reference(self.in_features, 0.0, self.dtype).to(self.device)

    def krylov_length(self) -> int:
        return self.in_features

    def _materialize(self) -> Tensor:
        # M_ij = node_i M_{i, j-1} + E_ji, down the columns of the transposed matrix
        E = self.H.mT @ self.G
        return column_scan(self.nodes.to(E.dtype), E).mT

    def _matmul(self, x: Tensor) -> Tensor:
        z = shift_krylov_rmatmul(self.H, x, 0.0, self.in_features)
        return (vandermonde_matmul(self.nodes, z) * self.G).sum(-2)

    def _rmatmul(self, y: Tensor) -> Tensor:
        z = vandermonde_rmatmul(self.nodes, y.unsqueeze(-2) * self.G, self.in_features)
        # Not a part of a larger one.
        return shift_krylov_matmul(self.H, z, 0.0).clone(memory_format=torch.contiguous_format)
