"""What a budget leaves to each weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..budget import Budget, allowance
from ..candidates import Candidate, Weight, charged
from ..selection import share_out
from ..structure import Structure
from .result import Plan

Rows = Sequence[Sequence[Candidate]]


class Share:
    """A budget over some weights and their candidates.

    Attributes:
        costs: of every candidate of each weight, in the budget's unit.
        limits: what each weight may cost: its own fraction, or what sharing out gives to it.
    """

    def __init__(self, budget: Budget, weights: Sequence[Weight], rows: Rows) -> None:
        self.budget = budget
        self.limit, self.unit, costs = allowance(budget, weights)
        self.costs: list[dict[Structure, float]] = []
        for weight, row in zip(weights, rows, strict=True):
            structures = [candidate.structure for candidate in row]
            self.costs.append(dict(zip(structures, costs(weight, structures), strict=True)))
        if isinstance(budget, float):
            self.limits = [budget * weight.size for weight in weights]
        else:
            plan = self.plan(weights, rows)
            self.limits = [
                cost[plan.structures[weight.name]] if plan.structures else 0.0
                for weight, cost in zip(weights, self.costs, strict=True)
            ]

    def leaders(self, w: int, row: Sequence[Candidate], count: int) -> list[Structure]:
        """The best candidate of each class that fits weight w's part: of the best `count` classes.

        One alone where it is the weight itself: there is nothing better to find.
        """
        best: dict[str, Candidate] = {}
        for candidate in row:
            name = candidate.structure.name
            fits = not candidate.structure.is_dense and self.costs[w][candidate.structure] <= self.limits[w]
            if fits and (name not in best or _key(candidate) < _key(best[name])):
                best[name] = candidate
        ordered = sorted(best.values(), key=_key)
        return [c.structure for c in ordered[: count if ordered and ordered[0].error > 0 else 1]]

    def plan(self, weights: Sequence[Weight], rows: Rows) -> Plan:
        """The budget shared out over all weights, with the errors that are known now."""
        # A residual of a large weight counts for more: by its number of entries.
        choices = [
            charged([replace(c, error=weight.size * c.error) for c in row], [cost[c.structure] for c in row])
            for weight, row, cost in zip(weights, rows, self.costs, strict=True)
        ]
        try:
            taken = share_out(choices, self.limit, self.unit, "analyze")
        except ValueError as error:
            return Plan(self.budget, {}, 0, 0.0, self.unit, float("nan"), str(error))
        return Plan(
            self.budget,
            {weight.name: c.structure for weight, c in zip(weights, taken, strict=True)},
            sum(c.parameters for c in taken),
            sum(c.cost for c in taken),
            self.unit,
            (sum(c.error for c in taken) / sum(weight.size for weight in weights)) ** 0.5,
        )


def _key(candidate: Candidate) -> tuple[float, int]:
    return candidate.error, candidate.parameters
