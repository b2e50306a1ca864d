"""Projection onto block-circulant matrices: least squares."""

from __future__ import annotations

from ...core.rules import rule
from ...project.problem import Problem, Tensors
from ..circulant.project import fit_blocks
from . import BlockCirculant


@rule("project", BlockCirculant)
def project(problem: Problem, rank: int) -> Tensors:
    m, n = problem.shape
    b = BlockCirculant.parameter_shapes(m, n, 1, **problem.options)["column"][-1]
    return {"column": fit_blocks(problem, b)}
