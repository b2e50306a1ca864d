"""How to project onto a class: by its own rule "project", or by descent where it has none."""

from __future__ import annotations

from collections.abc import Callable

from ..core import rules
from ..core.matrix import StructuredMatrix
from .generic import project_generic
from .problem import Problem, Tensors

Project = Callable[[Problem, int], Tensors]
STARTS: dict[tuple[type[StructuredMatrix], type[StructuredMatrix]], tuple[int, Project]] = {}


def solve(problem: Problem, rank: int) -> Tensors:
    """The parameters for this class and rank, found once: classes that contain others ask for theirs."""
    key = problem.key(rank)
    if key not in problem.known:
        project = rules.of_class("project", problem.cls) or project_generic
        problem.known[key] = project(problem, rank)
    return dict(problem.known[key])


def start_for(
    cls: type[StructuredMatrix], contained: type[StructuredMatrix], *, place: int
) -> Callable[[Project], Project]:
    """Register where a descent in one class may start: from the projection onto another that it contains.

    The decorated function returns that projection in the parameters of the larger class. Starts are tried in
    the order of their places, until one is exact.
    """

    def register(project: Project) -> Project:
        STARTS[cls, contained] = place, project
        return project

    return register


def starts(cls: type[StructuredMatrix]) -> dict[str, Project]:
    """The starts from classes that this one contains, by their names."""
    found = [(place, of.name, project) for (larger, of), (place, project) in STARTS.items() if larger is cls]
    return {name: project for _, name, project in sorted(found, key=lambda entry: entry[:2])}
