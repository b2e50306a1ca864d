"""From rank to rank, so that a higher one is never worse."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .problem import Problem, Tensors


class State(NamedTuple):
    """Parameters and their loss, the squared relative residual."""

    tensors: Tensors
    loss: float


def measured(problem: Problem, tensors: Tensors) -> State:
    """Parameters with their loss, by the class's own product."""
    return State(tensors, problem.loss(problem.dense(tensors)).item())


def climb(
    problem: Problem, rank: int, fresh: Callable[[int], State], grown: Callable[[State], State]
) -> State:
    """The best of a fresh start and of the rank before with one more, at every rank from 1.

    `fresh` takes a rank to a refined state, from nothing, `grown` a state to a refined one with one rank
    more, which is not worse. A member is found by the fresh start alone and returned at once. Results do not
    depend on the rank that was asked for, so the residual falls with the rank.
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


def repeated(
    problem: Problem,
    best: State,
    sweep: Callable[[Tensors], State],
    sweeps: int,
    tolerance: float,
    stage: str | None = None,
) -> State:
    """Sweeps of an alternation, from the tensors before to the state after, until one gains little.

    At most so many, each of which must gain the part `tolerance` of the loss. The stage is reported, by
    default the rank.
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
    """One descent at every rank from 1, from the best start: a quicker way to climb.

    `starts` takes a rank and the state of the rank before, or None, to where a descent may begin. Of those
    without a state before one may be a member at once. `descend` takes a state to one that is not worse.
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
