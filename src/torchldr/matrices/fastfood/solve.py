"""Solving with Fastfood: Hadamard transforms, where n is a power of two."""

from __future__ import annotations

from ...core.rules import rule
from ...functional.orthogonal import hadamard_transform
from ...linalg.solvers import Candidate, formula
from . import Fastfood


@rule("solvers", Fastfood)
def _(M: Fastfood) -> list[Candidate] | None:
    n = M.in_features
    if n & (n - 1):
        return None  # cropped transforms are no longer orthogonal
    back = M.permutation.argsort()
    return [
        formula(
            "hadamard transform",
            lambda b: hadamard_transform((hadamard_transform(b / M.S) / M.D)[..., back]) / M.B,
            lambda b: hadamard_transform(hadamard_transform(b / M.B)[..., M.permutation] / M.D) / M.S,
        )
    ]
