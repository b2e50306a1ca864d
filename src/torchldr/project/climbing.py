"""Climbing from rank to rank, so that a higher rank is never worse."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .problem import Problem, Tensors


class State(NamedTuple):
    """Parameters and their loss, the squared relative residual."""

    tensors: Tensors
    loss: float


def measured(problem: Problem, tensors: Tensors) -> State:
    """Parameters with their loss, computed by the class's own product."""
    return State(tensors, problem.loss(problem.dense(tensors)).item())


def climb(
    problem: Problem, rank: int, fresh: Callable[[int], State], grown: Callable[[State], State]
) -> State:
    """At every rank from 1, the better of a fresh start and the previous rank with one more generator.

    `fresh` gives a refined state of a rank from nothing. `grown` adds a rank to a state and refines it,
    without making it worse. If the fresh start finds W to be a member, it is returned at once. Results do not
    depend on the requested rank, so the residual falls with the rank.
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
        # The result at this rank, for classes that contain this one.
        result = at[q - 1] if problem.done(at[q - 1].loss) else state
        problem.known.setdefault(problem.key(q - 1), result.tensors)
        state = min(at[q], grown(state), key=lambda state: state.loss)
    problem.report(f"{name} rank {rank}", rank, rank)
    return state


def repeated(
    problem: Problem,
    best: State,
    sweep: Callable[[Tensors], State],
    sweeps: int,
    tolerance: float,
    stage: str | None = None,
) -> State:
    """Repeat a sweep until it lowers the loss by less than the fraction `tolerance`, or up to a limit.

    The stage is reported, by default the rank.
    """
    stage = stage or f"rank {len(best.tensors['G'])}"
    for done in range(sweeps):
        if problem.done(best.loss):
            break
        problem.report(f"{problem.cls.name}: {stage}", done, sweeps)
        found = sweep(best.tensors)
        if not found.loss < best.loss:
            break
        gain, best = 1 - found.loss / best.loss, found
        if gain < tolerance:
            break
    return best


def ascend(
    problem: Problem,
    rank: int,
    starts: Callable[[int, State | None], list[Tensors]],
    descend: Callable[[State], State],
) -> State:
    """Faster climbing: one descent at every rank from 1, from the best start.

    `starts` gives the starting states for a rank, from the previous rank's state or None; without one, a
    start may already be exact. `descend` lowers the loss of a state.
    """

    def best(q: int, before: State | None) -> State:
        states = [measured(problem, tensors) for tensors in starts(q, before)]
        return min(states, key=lambda state: state.loss)

    state = best(rank, None)
    if rank == 1 or problem.done(state.loss):
        return descend(state)
    state = descend(best(1, None))
    for q in range(2, rank + 1):
        problem.known.setdefault(problem.key(q - 1), state.tensors)
        state = descend(best(q, state))
    return state
