"""The result of `analyze`: tables, JSON, plans and pictures."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...json_text import json_text
from ...pictures import Style, look, new_figure
from ...tables import UNLIMITED, table_text, wrapped
from ...version import __version__
from ..budget import Budget, Bytes, Latency, budget_text, check_budget
from ..candidates import Candidate
from ..report import words
from ..sharing import share_residuals
from ..structure import Structure, plan_to_dict, structure_to_dict

FORMATS = (".png", ".svg", ".pdf")
COLUMNS = 3


@dataclass(frozen=True)
class Trial:
    """A structure that was tried on a weight.

    `residual` is |W - M| / |W|, weighted by activations if they were given. It comes from a full projection
    if `refined`, else from a quick one.
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
    """A weight, all trials on it, and the best one for each budget (None if nothing fits)."""

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
    """A budget shared out over all weights: a structure for each, and the totals.

    `cost` is in the budget's `unit`, `residual` the root mean square of the weights' residuals, by entries.
    If the budget is too small, `error` says so and there are no structures.
    """

    budget: Budget
    structures: dict[str, Structure]
    parameters: int
    cost: float
    unit: str
    residual: float
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        found = {**vars(self), "budget": budget_text(self.budget), "plan": plan_to_dict(self.structures)}
        found["residual"] = None if math.isnan(self.residual) else self.residual
        return {key: value for key, value in found.items() if key != "structures"}


@dataclass(frozen=True)
class Analysis:
    """What `analyze` returns. `print` shows a table.

    Attributes:
        budgets: as they were given.
        weights: a `WeightAnalysis` for each, its `best` in the order of the budgets.
        plans: for each budget, shared out over all weights.
        left: why other weights were left alone, by name.
        source: the file, or None.
        interrupted: whether an interrupt ended the search before all classes were tried.
    """

    budgets: tuple[Budget, ...]
    weights: tuple[WeightAnalysis, ...]
    plans: tuple[Plan, ...]
    left: dict[str, str] = field(default_factory=dict)
    source: str | None = None
    interrupted: bool = False

    def plan(self, budget: Budget | None = None) -> dict[str, Structure]:
        """The best structure of every weight under a budget for all of them, for `compress_`.

        Args:
            budget: an analysed budget (optional if there is only one), or any other fraction or number of
                parameters.

        Raises:
            ValueError: if it is too small, or a `Bytes` or `Latency` budget that was not analysed.
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
        rows = [[Candidate(t.structure, t.parameters, t.residual**2) for t in w.trials] for w in self.weights]
        costs = [{t.structure: float(t.parameters) for t in w.trials} for w in self.weights]
        sizes = [weight.parameters for weight in self.weights]
        taken = share_residuals(rows, sizes, costs, limit, "parameters", "plan")
        return {w.name: c.structure for w, c in zip(self.weights, taken, strict=True)}

    def to_dict(self) -> dict[str, Any]:
        """Everything as a JSON object."""
        return {
            "torchldr": __version__,
            "source": self.source,
            "budgets": [budget_text(budget) for budget in self.budgets],
            "weights": [weight.to_dict() for weight in self.weights],
            "plans": [plan.to_dict() for plan in self.plans],
            "left": self.left,
        }

    def to_json(self) -> str:
        """Everything as JSON."""
        return json_text(self.to_dict())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON to a file."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw residual against size, a panel for each weight, to a .png, .svg or .pdf file.

        Raises:
            ImportError: without matplotlib.
        """
        _draw(self.weights, Path(path))

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = UNLIMITED) -> str:
        """The tables, in lines of this width."""
        texts = [budget_text(budget) for budget in self.budgets]
        rows = []
        for weight in self.weights:
            shape = f"{weight.shape[0]} x {weight.shape[1]}"
            many = f"{weight.matrices} of {shape}" if weight.matrices > 1 else shape
            rows.append((weight.name, many, *(_cell(trial) for trial in weight.best)))
        lines = table_text(("weight", "shape", *texts), rows, width, breaks=texts)
        head = ("budget", "each by itself", "shared out", "parameters")
        lines += ["", *table_text(head, [*map(self._summary, range(len(texts)))], width, right=head[1:])]
        for name, why in self.left.items():
            lines += wrapped(f"left alone: {name} ({why})", width)
        return "\n".join(lines)

    def _summary(self, b: int) -> tuple[str, str, str, str]:
        """A row of the second table: residuals of the best trials and of the plan, and its size."""
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


def check_picture(path: Path) -> None:
    """Raise for a file name that is not a picture's, and without matplotlib."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"a picture's name must end in {', '.join(FORMATS)}, got {str(path)!r}.")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError("pictures need matplotlib; pip install matplotlib") from None


def _draw(weights: Sequence[WeightAnalysis], path: Path) -> None:
    """Draw residual against the share of the parameters, a panel for each weight.

    Filled marks are full or exact projections, hollow marks quick ones; rings mark the best for each budget.
    """
    check_picture(path)
    trials = [t.structure for weight in weights for t in weight.trials]
    names = sorted({structure.name for structure in trials if not structure.is_dense})
    looks = {name: look(name) for name in names}
    columns = min(COLUMNS, len(weights))
    rows = math.ceil(len(weights) / columns)
    figure, axes = new_figure(4.4 * columns, 3.4 * rows + 0.6, rows, columns, sharex=True, sharey=True)
    for ax, weight in zip(axes.flat, weights, strict=False):
        _panel(ax, weight, looks)
    for ax in axes.flat[len(weights) :]:
        ax.set_axis_off()
    handles = [
        figure.axes[0].plot([], [], color=colour, marker=marker, markersize=4, label=name)[0]
        for name, (colour, marker) in looks.items()
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(6, len(handles)), fontsize=8)
    figure.supxlabel("parameters, as a share of the dense weight's", fontsize=9)
    figure.supylabel("residual", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _panel(ax: Any, weight: WeightAnalysis, looks: dict[str, Style]) -> None:
    for name, (colour, marker) in looks.items():
        trials = [t for t in weight.trials if t.structure.name == name]
        sizes = [t.parameters / weight.parameters for t in trials]
        ax.plot(sizes, [t.residual for t in trials], color=colour, linewidth=0.8)
        for refined in (False, True):
            some = [t for t in trials if t.refined == refined]
            ax.plot([t.parameters / weight.parameters for t in some], [t.residual for t in some],
                    color=colour, marker=marker, markersize=3.5, linestyle="",
                    markerfacecolor=colour if refined else "white")  # fmt: skip
    for best in filter(None, weight.best):
        ax.plot([best.parameters / weight.parameters], [best.residual], marker="o", markersize=9,
                markerfacecolor="none", markeredgecolor="black", linestyle="")  # fmt: skip
    ax.set_xscale("log")
    ax.set_ylim(-0.03, 1.05)
    ax.grid(True, linewidth=0.3)
    ax.set_title(f"{weight.name}, {weight.shape[0]} x {weight.shape[1]}", fontsize=9)
