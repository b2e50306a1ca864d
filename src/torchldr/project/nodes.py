"""Classes whose nodes may be learned: first as they start, then everything together."""

from __future__ import annotations

import torch

from .climbing import State, climb
from .methods import solve
from .pointwise import with_one_more
from .problem import Problem, Tensors
from .refining import refine

_STEPS = 100


def learn_nodes(problem: Problem, rank: int, names: tuple[str, ...]) -> Tensors:
    """Descend from the projection with fixed nodes, and from the rank before with one more."""
    steps = problem.steps(_STEPS)
    fixed = problem.for_class(problem.cls, learn_nodes=False)

    def fresh(q: int) -> State:
        start = {**solve(fixed, q), **{name: fixed.constants[name].clone() for name in names}}
        return refine(problem, start, steps, stage=f"rank {q}")

    def grown(state: State) -> State:
        G, H = state.tensors["G"], state.tensors["H"]
        q = len(G) + 1
        more = torch.randn(1, H.shape[1], dtype=H.dtype, generator=problem.generator(q))
        more *= H.norm() / len(H) ** 0.5 / H.shape[1] ** 0.5
        start = dict(zip("GH", with_one_more(G, H, more), strict=True))
        return refine(problem, {**state.tensors, **start}, steps, stage=f"rank {q} from {q - 1}")

    return climb(problem, rank, fresh, grown).tensors
