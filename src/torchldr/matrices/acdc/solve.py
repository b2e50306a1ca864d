"""Solving with ACDC: cosine transforms, as the inverse is of the same form."""

from __future__ import annotations

from torch import Tensor

from ...core.rules import rule
from ...functional.orthogonal import cosine_transform, inverse_cosine_transform
from ...linalg.solvers import Candidate, formula
from . import ACDC


@rule("solvers", ACDC)
def _(M: ACDC) -> list[Candidate]:
    def through(b: Tensor) -> Tensor:
        return cosine_transform(inverse_cosine_transform(b) / M.D)

    return [formula("cosine transform", lambda b: through(b / M.A), lambda b: through(b) / M.A)]
