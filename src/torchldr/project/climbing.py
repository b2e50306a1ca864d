"""From rank to rank, so that a higher one is never worse."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .problem import Problem, Tensors


class State(NamedTuple):
    """Parameters and their loss, the squared relative residual."""

    tensors: Tensors
    loss: float


def climb(
    problem: Problem,
    rank: int,
    fresh: Callable[[int], State],
    grown: Callable[[State], State],
) -> State:
    """The best of a fresh start and of the rank before with one more, at every rank from 1.

    Args:
        problem: names the stages that are reported.
        rank: the rank wanted.
        fresh: rank to a refined state, from nothing.
        grown: a state to a refined one with one rank more, which is not worse.

    A member is found by the fresh start alone and returned at once. Results do not depend on the rank
    that was asked for, so the residual falls with the rank.
    """
    name = problem.cls.name
    problem.report(f"{name} rank {rank}", 0, rank)
    at = {rank: fresh(rank)}
    if problem.done(at[rank].loss) or rank == 1:
        problem.report(f"{name} rank {rank}", rank, rank)
        return at[rank]
    state = at[1] = fresh(1)
    for q in range(2, rank + 1):
        problem.report(f"{name} rank {rank}", q - 1, rank)
        at[q] = at[q] if q in at else fresh(q)
        # What this rank would have given by itself, for classes that contain this one.
        result = at[q - 1] if problem.done(at[q - 1].loss) else state
        problem.known.setdefault(problem.key(q - 1), result.tensors)
        state = min(at[q], grown(state), key=lambda state: state.loss)
    problem.report(f"{name} rank {rank}", rank, rank)
    return state
