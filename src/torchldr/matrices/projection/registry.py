"""Which function projects onto which class."""

from __future__ import annotations

from collections.abc import Callable

from ...core.matrix import StructuredMatrix
from .problem import Problem, Tensors

Project = Callable[[Problem, int], Tensors]
PROJECTIONS: dict[type[StructuredMatrix], Project] = {}


def projects(*classes: type[StructuredMatrix]) -> Callable[[Project], Project]:
    """Register a function from a problem and a rank to the parameters of a good member."""

    def register(project: Project) -> Project:
        for cls in classes:
            PROJECTIONS[cls] = project
        return project

    return register


def solve(problem: Problem, rank: int) -> Tensors:
    """The parameters for this class and rank, found once: classes that contain others ask for theirs."""
    key = problem.key(rank)
    if key not in problem.known:
        problem.known[key] = PROJECTIONS[problem.cls](problem, rank)
    return dict(problem.known[key])
