"""What `analyze` tried and found: tables, JSON and plans."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...version import __version__
from ..budget import Budget, Bytes, Latency, budget_text, check_budget
from ..candidates import Candidate, charged
from ..report import table_lines, words
from ..selection import share_out
from ..structure import Structure, plan_to_dict, structure_to_dict
from .plot import save_plot


@dataclass(frozen=True)
class Trial:
    """A structure that was tried on a weight.

    `residual` is |W - M| / |W| (by activations, where these were given): of a quick projection, or of a
    full one where `refined`.
    """

    structure: Structure
    parameters: int
    residual: float
    refined: bool

    def to_dict(self) -> dict[str, Any]:
        numbers = {key: value for key, value in vars(self).items() if key != "structure"}
        return {**structure_to_dict(self.structure), **numbers}


@dataclass(frozen=True)
class WeightAnalysis:
    """A weight, everything that was tried on it, and the best for each budget (None where nothing fits)."""

    name: str
    kind: str
    shape: tuple[int, int]
    matrices: int
    parameters: int
    trials: tuple[Trial, ...]
    best: tuple[Trial | None, ...]

    def to_dict(self) -> dict[str, Any]:
        best = [None if trial is None else trial.to_dict() for trial in self.best]
        trials = [trial.to_dict() for trial in self.trials]
        return {**vars(self), "shape": list(self.shape), "best": best, "trials": trials}


@dataclass(frozen=True)
class Plan:
    """A budget shared out over all weights: a structure for each, and what that comes to.

    `cost` is in the budget's `unit`, `residual` the root mean square of the weights' residuals, by entries.
    Where the budget is too small, `error` says so and there are no structures.
    """

    budget: Budget
    structures: dict[str, Structure]
    parameters: int
    cost: float
    unit: str
    residual: float
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "budget": budget_text(self.budget),
            "parameters": self.parameters,
            "cost": self.cost,
            "unit": self.unit,
            "residual": None if math.isnan(self.residual) else self.residual,
            "error": self.error,
            "plan": plan_to_dict(self.structures),
        }


@dataclass(frozen=True)
class Analysis:
    """What `analyze` returns. `print` shows a table.

    Attributes:
        budgets: as they were given.
        weights: a `WeightAnalysis` for each, its `best` in the order of the budgets.
        plans: for each budget, shared out over all weights.
        left: why others were left alone, by name.
        source: the file, or None.
        interrupted: whether an interrupt cut it short: then some classes were not tried.
    """

    budgets: tuple[Budget, ...]
    weights: tuple[WeightAnalysis, ...]
    plans: tuple[Plan, ...]
    left: dict[str, str] = field(default_factory=dict)
    source: str | None = None
    interrupted: bool = False

    def plan(self, budget: Budget | None = None) -> dict[str, Structure]:
        """The best structure of every weight under a budget for all together: for `compress_`.

        Args:
            budget: one of those that were analysed (may be left out where there was one), or any other
                fraction or number of parameters.

        Raises:
            ValueError: where it is too small, or asks for bytes or latencies that were not analysed.
        """
        if budget is None:
            if len(self.budgets) != 1:
                raise ValueError(f"plan: which budget? This analysis has {self._known()}.")
            budget = self.budgets[0]
        check_budget("plan", budget)
        for plan in self.plans:
            if plan.budget == budget and type(plan.budget) is type(budget):
                if plan.error is not None:
                    raise ValueError(f"plan: {plan.error}")
                return dict(plan.structures)
        if isinstance(budget, Bytes | Latency):
            raise ValueError(f"plan: {budget} was not analysed, this analysis has {self._known()}.")
        whole = sum(weight.parameters for weight in self.weights)
        limit = int(budget * whole) if isinstance(budget, float) else budget
        rows = []
        for weight in self.weights:
            # A residual of a large weight counts for more: by its number of entries.
            errors = [weight.parameters * trial.residual**2 for trial in weight.trials]
            pairs = zip(weight.trials, errors, strict=True)
            row = [Candidate(trial.structure, trial.parameters, error) for trial, error in pairs]
            rows.append(charged(row, [trial.parameters for trial in weight.trials]))
        taken = share_out(rows, limit, who="plan")
        return {w.name: c.structure for w, c in zip(self.weights, taken, strict=True)}

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        return {
            "torchldr": __version__,
            "source": self.source,
            "budgets": [budget_text(budget) for budget in self.budgets],
            "weights": [weight.to_dict() for weight in self.weights],
            "plans": [plan.to_dict() for plan in self.plans],
            "left": self.left,
        }

    def to_json(self) -> str:
        """All of it as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON to a file."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw residual against size, a panel for each weight, to a .png, .svg or .pdf file.

        Raises:
            ImportError: without matplotlib.
        """
        save_plot(self.weights, Path(path))

    def __str__(self) -> str:
        texts = [budget_text(budget) for budget in self.budgets]
        head = ("weight", "shape", *texts)
        rows = []
        for weight in self.weights:
            shape = f"{weight.shape[0]} x {weight.shape[1]}"
            many = f"{weight.matrices} of {shape}" if weight.matrices > 1 else shape
            rows.append((weight.name, many, *(_cell(trial) for trial in weight.best)))
        lines = table_lines([head, *rows], texts=len(head))
        head = ("budget", "each by itself", "shared out", "parameters")
        lines += ["", *table_lines([head, *map(self._summary, range(len(texts)))], texts=1)]
        lines += [f"left alone: {name} ({why})" for name, why in self.left.items()]
        return "\n".join(lines)

    def _summary(self, b: int) -> tuple[str, str, str, str]:
        """Root mean squares of residuals: of the best of each weight, and of the plan for all together."""
        plan, best = self.plans[b], [weight.best[b] for weight in self.weights]
        each = "-"
        if isinstance(plan.budget, float) and all(best):
            squares = [trial.residual**2 for trial in best if trial is not None]
            each = f"{(sum(squares) / len(squares)) ** 0.5:.3f}"
        size = f"{plan.parameters:,}" + (f" ({plan.cost:.3g} ms)" if plan.unit == "ms" else "")
        failed = plan.error is not None
        shared = "too small" if failed else f"{plan.residual:.3f}"
        return budget_text(plan.budget), each, shared, "-" if failed else size

    def _known(self) -> str:
        return ", ".join(budget_text(budget) for budget in self.budgets)


def _cell(trial: Trial | None) -> str:
    return "-" if trial is None else f"{words(trial.structure)}: {trial.residual:.3f}"
