"""Classes without a projection of their own: descent from random members."""

from __future__ import annotations

import torch

from .climbing import State, climb
from .problem import Problem, Tensors
from .refining import refine

_STARTS, _SHORT, _STEPS = 4, 30, 200


def project_generic(problem: Problem, rank: int) -> Tensors:
    """L-BFGS through the class's own product, from several draws; the rank before padded by zeros."""
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
        """G grows by nothing and H by something new; a class without them starts anew."""
        q = len(state.tensors["G"]) + 1
        if "H" not in state.tensors:
            return fresh(q)
        more = drawn(q, _STARTS)
        tensors = dict(state.tensors)
        tensors["G"] = torch.cat((tensors["G"], torch.zeros_like(more["G"][:1])))
        tensors["H"] = torch.cat((tensors["H"], more["H"][:1]))
        return refine(problem, tensors, problem.steps(_STEPS), stage=f"rank {q} from {q - 1}")

    if not cls.ranked:
        return fresh(1).tensors
    return climb(problem, rank, fresh, grown).tensors
