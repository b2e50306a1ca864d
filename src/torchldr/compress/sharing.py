"""Sharing out a budget over weights: one candidate for each, for the smallest total error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from .budget import BudgetError
from .candidates import Candidate, charged
from .structure import Structure


def price_of(rows: Sequence[Sequence[Candidate]], limit: float) -> float:
    """The error per unit of cost at which the budget is spent, by bisection."""
    low, high = 0.0, max((c.error for row in rows for c in row), default=0.0) + 1.0
    for _ in range(60):
        middle = (low + high) / 2
        spent = sum(min(row, key=lambda c: (c.error + middle * c.cost, c.cost)).cost for row in rows)
        low, high = (middle, high) if spent > limit else (low, middle)
    return high


def whole_plans(rows: Sequence[Sequence[Candidate]], limit: float) -> list[list[list[Structure]]]:
    """Plans with one class for all weights, for every class that fits, by growing error.

    The first list is shared out (`share_out`) between the class and dense weights; the second gives every
    weight the same share.
    """
    dense = [next(c for c in row if c.structure.is_dense) for row in rows]
    share = limit / (sum(c.cost for c in dense) or 1.0)
    alone, uniform = [], []
    for name in dict.fromkeys(c.structure.name for row in rows for c in row if not c.structure.is_dense):
        some = [[c for c in row if c.structure.is_dense or c.structure.name == name] for row in rows]
        if sum(row[0].cost for row in some) <= limit:
            alone.append(share_out(some, limit))
        pairs = zip(some, dense, strict=True)
        fits = [[c for c in row if c is not whole and c.cost <= share * whole.cost] for row, whole in pairs]
        if all(fits):
            uniform.append([min(row, key=lambda c: c.error) for row in fits])
    return [
        [[c.structure for c in plan] for plan in sorted(plans, key=lambda plan: sum(c.error for c in plan))]
        for plans in (alone, uniform)
    ]


def share_out(
    choices: Sequence[Sequence[Candidate]], limit: float, unit: str = "parameters", who: str = "compress_"
) -> list[Candidate]:
    """One candidate for each weight, with costs of at most `limit` together.

    Every weight starts at its cheapest candidate. Then the loop repeatedly takes the step with the largest
    decrease of the total error per unit of cost, among those that still fit. `choices` are sorted by cost.

    Raises:
        BudgetError: where even the cheapest candidates do not fit.
    """
    taken = [row[0] for row in choices]
    rest = limit - sum(candidate.cost for candidate in taken)
    if rest < 0:
        raise BudgetError(
            f"{who}: a budget of {_amount(limit, unit)} {unit} is too small: the smallest candidates have "
            f"{_amount(limit - rest, unit)}."
        )
    best = [_step(row, now, rest) for row, now in zip(choices, taken, strict=True)]
    while True:
        for i, step in enumerate(best):
            if step is not None and step.cost - taken[i].cost > rest:
                best[i] = _step(choices[i], taken[i], rest)
        open_ones = [(i, step) for i, step in enumerate(best) if step is not None]
        if not open_ones:
            return taken
        i, step = max(open_ones, key=lambda pair: _slope(taken[pair[0]], pair[1]))
        rest -= step.cost - taken[i].cost
        taken[i] = step
        best[i] = _step(choices[i], step, rest)


def _amount(value: float, unit: str) -> str:
    return f"{value:.4g}" if unit == "ms" else f"{round(value)}"


def _slope(now: Candidate, then: Candidate) -> float:
    return (now.error - then.error) / max(then.cost - now.cost, 1e-9)


def _step(row: Sequence[Candidate], now: Candidate, rest: float) -> Candidate | None:
    """The best step that fits and lowers the error, or None."""
    fits = [c for c in row if 0 <= c.cost - now.cost <= rest and c.error < now.error]
    return max(fits, key=lambda c: _slope(now, c), default=None)


def share_residuals(
    rows: Sequence[Sequence[Candidate]],
    sizes: Sequence[int],
    costs: Sequence[Mapping[Structure, float]],
    limit: float,
    unit: str,
    who: str,
) -> list[Candidate]:
    """`share_out` of candidates whose errors are squares of relative residuals, weighted by entries."""
    choices = []
    for row, size, cost in zip(rows, sizes, costs, strict=True):
        weighted = [replace(candidate, error=size * candidate.error) for candidate in row]
        choices.append(charged(weighted, [cost[candidate.structure] for candidate in row]))
    return share_out(choices, limit, unit, who)
