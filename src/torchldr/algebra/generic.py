"""What is known of the displacement of operators, and of classes that say no more than their operators."""

from __future__ import annotations

import torch

from ..core.matrix import StructuredMatrix
from ..core.rules import rule
from ..operators import DenseOperator, Diagonal, Entries, Operator, low_rank_sum, sparse_product
from .members import shift, telescoped
from .structure import DisplacementStructure, Generators


@rule("displacement_structure", StructuredMatrix)
def _(M: StructuredMatrix) -> DisplacementStructure | None:
    found = M.operators()
    if found is None:
        return None
    A, C = (DenseOperator(operator) for operator in found)

    def make() -> Generators:
        factors = M.factors()
        G = torch.stack([left[:, 0] for left, _ in factors])
        H = torch.stack([right[0] for _, right in factors])
        return telescoped(A, C, G, H, M.krylov_length())

    return DisplacementStructure(A, C.T, "stein", 2 * len(M.factors()), make)


@rule("displacement_structure", Operator)
def _(M: Operator) -> DisplacementStructure | None:
    """M - Z_1 M Z_1^T, sparse as M is, of low rank where M changes little along its diagonals."""
    Z, entries, n = shift(M.n, 1.0, M), M.entries(), M.n
    moved = sparse_product(sparse_product(Z.entries(), entries, n), Z.T.entries(), n)
    both = (torch.cat(pair) for pair in zip(entries, moved._replace(values=-moved.values), strict=True))
    found = low_rank_sum(Entries(*both), n)
    if 2 * found.rank > n:
        return None

    def make() -> Generators:
        U, V = found.factors()
        return U.to(M.dtype), V.to(M.dtype)

    return DisplacementStructure(Z, Z.T, "stein", found.rank, make)


rule("matmul", Diagonal, Diagonal)(lambda D, E: Diagonal(D.d * E.d))
