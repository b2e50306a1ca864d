"""Projecting onto a class: by its rule "project", or by descent if it has none."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..core import rules
from ..core.matrix import StructuredMatrix
from .climbing import State, climb
from .pointwise import with_one_more
from .problem import Problem, Tensors
from .refining import refine

Project = Callable[[Problem, int], Tensors]
STARTS: dict[tuple[type[StructuredMatrix], type[StructuredMatrix]], tuple[int, Project]] = {}


def solve(problem: Problem, rank: int) -> Tensors:
    """The parameters for this class and rank, cached, because larger classes ask for them too."""
    key = problem.key(rank)
    if key not in problem.known:
        project = rules.of_class("project", problem.cls) or by_descent
        problem.known[key] = project(problem, rank)
    return dict(problem.known[key])


def start_for(
    cls: type[StructuredMatrix], contained: type[StructuredMatrix], *, place: int
) -> Callable[[Project], Project]:
    """Register a start for a class: the projection onto another class that it contains.

    The decorated function returns that projection in the parameters of the larger class. Starts are tried in
    order until one is exact.
    """

    def register(project: Project) -> Project:
        STARTS[cls, contained] = place, project
        return project

    return register


def starts(cls: type[StructuredMatrix]) -> dict[str, Project]:
    """The starts from classes that this one contains, by their names."""
    found = [(place, of.name, project) for (larger, of), (place, project) in STARTS.items() if larger is cls]
    return {name: project for _, name, project in sorted(found, key=lambda entry: entry[:2])}


# Classes without a projection of their own.

_STARTS, _SHORT, _STEPS = 4, 30, 200


def by_descent(problem: Problem, rank: int) -> Tensors:
    """L-BFGS through the class's own product, from several random members and the previous rank."""
    cls, (m, n) = problem.cls, problem.shape

    def drawn(q: int, start: int) -> Tensors:
        shapes = cls.check_shapes(m, n, q if cls.ranked else None, problem.options)
        tensors = {name: torch.empty(shape, dtype=torch.float64) for name, shape in shapes.items()}
        generator = problem.generator(q, start)
        cls.init_({**problem.constants, **tensors}, m, n, generator, **problem.options)
        return tensors

    def fresh(q: int) -> State:
        short = [refine(problem, drawn(q, i), problem.steps(_SHORT)) for i in range(_STARTS)]
        best = min(short, key=lambda state: state.loss)
        return refine(problem, best.tensors, problem.steps(_STEPS), stage=f"rank {q}")

    def grown(state: State) -> State:
        """Append zeros to G and random entries to H; a class without them starts anew."""
        q = len(state.tensors["G"]) + 1
        if "H" not in state.tensors:
            return fresh(q)
        G, H = with_one_more(state.tensors["G"], state.tensors["H"], drawn(q, _STARTS)["H"][:1])
        start = {**state.tensors, "G": G, "H": H}
        return refine(problem, start, problem.steps(_STEPS), stage=f"rank {q} from {q - 1}")

    if not cls.ranked:
        return fresh(1).tensors
    return climb(problem, rank, fresh, grown).tensors


# Classes with learned nodes: first with fixed nodes, then everything together.

_NODE_STEPS = 100


def learn_nodes(problem: Problem, rank: int, names: tuple[str, ...]) -> Tensors:
    """Descend from the projection with fixed nodes, and from the previous rank with one more generator."""
    steps = problem.steps(_NODE_STEPS)
    fixed = problem.for_class(problem.cls, learn_nodes=False)

    def fresh(q: int) -> State:
        start = {**solve(fixed, q), **{name: fixed.constants[name].clone() for name in names}}
        return refine(problem, start, steps, stage=f"rank {q}")

    def grown(state: State) -> State:
        G, H = state.tensors["G"], state.tensors["H"]
        q = len(G) + 1
        more = torch.randn(1, H.shape[1], dtype=H.dtype, generator=problem.generator(q))
        more *= H.norm() / len(H) ** 0.5 / H.shape[1] ** 0.5
        G, H = with_one_more(G, H, more)
        return refine(problem, {**state.tensors, "G": G, "H": H}, steps, stage=f"rank {q} from {q - 1}")

    return climb(problem, rank, fresh, grown).tensors
