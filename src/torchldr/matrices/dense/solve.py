"""Solving with unstructured matrices: elimination."""

from __future__ import annotations

from ...core.rules import rule
from ...linalg.solvers import Candidate, dense
from . import Dense


@rule("solvers", Dense)
def _(M: Dense) -> list[Candidate]:
    return [dense(M)]
