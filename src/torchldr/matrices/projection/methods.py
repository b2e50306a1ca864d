"""All projections, registered. Imported by the first call, so that `import torchldr` stays quick."""

from __future__ import annotations

from . import diagonals, fixed, linear, subdiagonal, tridiagonal, vandermonde
from .generic import project_generic
from .problem import Problem, Tensors
from .registry import PROJECTIONS, solve

MODULES = (diagonals, fixed, linear, subdiagonal, tridiagonal, vandermonde)


def project(problem: Problem, rank: int) -> Tensors:
    """The parameters of a near member: by the class's own method, or by descent where it has none."""
    return (solve if problem.cls in PROJECTIONS else project_generic)(problem, rank)
