"""Closure rules of sums of Kronecker products: sums, transposes, and products factor by factor."""

from __future__ import annotations

from ...algebra.members import linear_in_generators
from ...core.rules import rule
from . import Kronecker

linear_in_generators(Kronecker)


@rule("transpose", Kronecker)
def _(M: Kronecker) -> Kronecker:
    options = {"out_blocks": M.options["in_blocks"], "in_blocks": M.options["out_blocks"]}
    tensors = {"G": M.A.mT.flatten(1), "H": M.B.mT.flatten(1)}
    return Kronecker.unchecked(M.in_features, M.out_features, tensors, options)


@rule("matmul", Kronecker, Kronecker)
def _(M: Kronecker, N: Kronecker) -> Kronecker | None:
    """(A (x) B)(C (x) D) = A C (x) B D, for every pair of terms, where no side between is cropped."""
    (_, _, c, d), rank = M.sizes, M.G.shape[0] * N.G.shape[0]
    fits = (c, d) == N.sizes[:2] and c * d == M.in_features and rank <= min(M.out_features, N.in_features)
    if not fits or M.dtype != N.dtype:
        return None
    A, B = M.A.unsqueeze(1) @ N.A, M.B.unsqueeze(1) @ N.B  # (r, s, .., ..)
    options = {"out_blocks": M.sizes.a, "in_blocks": N.sizes.c}
    tensors = {"G": A.flatten(0, 1).flatten(1), "H": B.flatten(0, 1).flatten(1)}
    return Kronecker.unchecked(M.out_features, N.in_features, tensors, options)
