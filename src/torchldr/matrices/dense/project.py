"""Projection onto unstructured matrices: the matrix itself."""

from __future__ import annotations

from ...core.rules import rule
from ...project.problem import Problem, Tensors
from . import Dense


@rule("project", Dense)
def project(problem: Problem, rank: int) -> Tensors:
    return {"weight": problem.W}
