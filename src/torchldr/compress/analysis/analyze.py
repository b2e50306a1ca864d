"""`analyze`: the structures that every weight could become, and their errors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from ...matrices import structures as known_structures
from ...progress import Report, silent
from ..budget import Budget, BudgetError, allowance, check_budget, no_room
from ..calibration import calibrate
from ..candidates import WORK, Candidate, Search, Weight, check_finite, class_names, exact, priced
from ..checkpoint.weights import Source, find_tensors, open_tensors
from ..errors import CHOOSING, Errors, Task, errors_of, within
from ..metric import Metric
from ..session import Session, check_count, check_time
from ..sharing import share_residuals
from ..structure import Structure
from ..targets import FilterFn, Unit, find_units, parts_of
from .result import Analysis, Plan, Trial, WeightAnalysis

BUDGETS = (1 / 2, 1 / 5, 1 / 10, 1 / 20)
USUAL_RANKS = (1, 2, 4, 8, 16)
REFINED = 3
SCREENING, REFINING = 3e8, 3e8  # work of quick and full projections (`work_of`): some minutes
_SCREENING = 0.6  # of a time limit, for quick projections
Rows = Sequence[Sequence[Candidate]]


def analyze(
    source: nn.Module | Source,
    *,
    budget: Budget | Sequence[Budget] = BUDGETS,
    structures: Sequence[str] | None = None,
    ranks: Sequence[int] | None = None,
    skip: Sequence[str] = (),
    filter_fn: FilterFn | None = None,
    min_features: int = 32,
    loader: Iterable[Any] | None = None,
    batches: int | None = 8,
    time_limit: float | None = None,
    seed: int = 0,
    progress: Report | None = None,
) -> Analysis:
    """Try every structured class at several ranks on every weight: residual against size.

    First every structure gets a quick projection. Then, for each weight and budget, the best three classes
    are projected with full effort, and the best of these is chosen.

    Args:
        source: a module, to try the weights that `compress_` would replace; or the path of a .safetensors
            file or a mapping of names to tensors, to try every matrix.
        budget: one or several. A fraction applies to each weight separately. A number of parameters, `Bytes`
            or `Latency` applies to all weights together, shared out by residual as in `compress_`.
        structures: names of the classes to try; all by default.
        ranks: ranks to try, however long that takes. By default 1, 2, 4, 8, 16 and the largest that fits each
            fraction, and for low rank about 50; structures whose quick projection would take more than a few
            seconds are then skipped.
        skip: names and patterns of weights to leave alone.
        filter_fn: called with (module, name) for a module; False leaves a layer alone.
        min_features: weights with fewer rows or columns are left alone.
        loader, batches: as for `compress_`; residuals are weighted by the inputs of the module's layers.
        time_limit: limit in seconds. If it is short, or after an interrupt, the result holds what was found
            so far, low rank first.
        seed: random seed of the projections.
        progress: as for `compress_`.

    Returns:
        An `Analysis`: print it, `.plan(budget)`, `.to_json()`, `.save(path)`, `.plot(path)`.

    Examples:
        >>> import torch
        >>> W = torch.randn(64, 2) @ torch.randn(2, 64)
        >>> found = analyze({"W": W}, budget=0.1, structures=["low_rank", "circulant"])
        >>> found.plan(0.1)
        {'W': Structure('low_rank', rank=2)}
    """
    budgets = tuple(dict.fromkeys(budget)) if isinstance(budget, list | tuple) else (budget,)
    if not budgets:
        raise ValueError("analyze: at least one budget is needed, got none.")
    for one in budgets:
        check_budget("analyze", one)
    names = class_names("analyze", structures or known_structures())
    for rank in ranks or ():
        check_count("analyze", ranks=rank)
    fractions = [one for one in budgets if isinstance(one, float)]
    search = Search(names, ranks, USUAL_RANKS, WORK if ranks is None else None, fractions)
    check_count("analyze", min_features=min_features, batches=1 if batches is None else batches)
    weights, left = _weights(source, skip, filter_fn, min_features, loader)
    check_time("analyze", time_limit)
    if not weights:
        raise ValueError(f"analyze: no weight with two axes of {min_features} or more was found.")
    largest = max(min(weight.matrices[0].shape) for weight in weights)
    if ranks and min(ranks) > largest:
        raise ValueError(f"analyze: ranks must be at most {largest} for these weights, got {[*ranks]}.")
    check_finite("analyze", weights)
    candidates = [[s for name in names for s in search.structures(name, weight)] for weight in weights]
    reasons = [no_room("analyze", one, weights, candidates) for one in budgets]
    if None not in reasons:
        raise BudgetError(reasons[0])
    session = Session(seed, time_limit, progress or silent, partial=True)
    inputs: dict[str, Metric] = {}
    if loader is not None and isinstance(source, nn.Module):
        units = [weight for weight in weights if isinstance(weight, Unit)]
        inputs = calibrate(source, units, loader, batches, None, session).metrics
    for weight in weights:  # squares of relative residuals, by the inputs of a module's layers if known
        metric = Metric(inputs[weight.name].inputs if inputs else None)
        session.metrics[weight.name] = metric.relative(1, weight.matrices)
    rows = _screen(search, weights, session)
    shares = [Share(budget, weights, rows) for budget in budgets]
    refined = _refine(shares, weights, rows, session)
    rows = [
        [replace(c, error=known.get(c.structure, c.error)) for c in row]
        for known, row in zip(refined, rows, strict=True)
    ]
    plans = [share.plan(weights, rows) for share in shares]
    analysed = []
    for w, (weight, row) in enumerate(zip(weights, rows, strict=True)):
        trials: dict[Structure, Trial] = {}
        for c in sorted(row, key=lambda c: (c.parameters, c.error)):
            known = exact(c.structure.name) or c.structure in refined[w]
            trials[c.structure] = Trial(c.structure, c.parameters, c.error**0.5, known)
        best = [_best(share, plan, w, weight, trials) for share, plan in zip(shares, plans, strict=True)]
        m, n = weight.matrices[0].shape
        parts = weight.name, weight.kind, (m, n), len(weight.matrices), weight.size
        analysed.append(WeightAnalysis(*parts, tuple(trials.values()), tuple(best)))
    name = str(os.fspath(source)) if isinstance(source, str | os.PathLike) else None
    return Analysis(budgets, tuple(analysed), tuple(plans), left, name, session.interrupted)


class Share:
    """A budget over some weights and their candidates.

    Attributes:
        costs: of every candidate of each weight, in the budget's unit.
        limits: the most that each weight may cost: its own fraction, or its part of the shared budget.
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

    def leaders(self, w: int, row: Sequence[Candidate]) -> list[Structure]:
        """The best candidates of the best `REFINED` classes within weight w's limit, one for each class.

        Only one if it has no error: there is nothing better to find.
        """
        key = lambda candidate: (candidate.error, candidate.parameters)
        best: dict[str, Candidate] = {}
        for candidate in row:
            name = candidate.structure.name
            fits = not candidate.structure.is_dense and self.costs[w][candidate.structure] <= self.limits[w]
            if fits and (name not in best or key(candidate) < key(best[name])):
                best[name] = candidate
        ordered = sorted(best.values(), key=key)
        return [c.structure for c in ordered[: REFINED if ordered and ordered[0].error > 0 else 1]]

    def plan(self, weights: Sequence[Weight], rows: Rows) -> Plan:
        """The budget shared out over all weights, with the errors known so far."""
        sizes = [weight.size for weight in weights]
        try:
            taken = share_residuals(rows, sizes, self.costs, self.limit, self.unit, "analyze")
        except BudgetError as error:
            return Plan(self.budget, {}, 0, 0.0, self.unit, float("nan"), str(error))
        return Plan(
            self.budget,
            {weight.name: c.structure for weight, c in zip(weights, taken, strict=True)},
            sum(c.parameters for c in taken),
            sum(c.cost for c in taken),
            self.unit,
            (sum(c.error for c in taken) / sum(weight.size for weight in weights)) ** 0.5,
        )


def _screen(search: Search, weights: Sequence[Weight], session: Session) -> list[list[Candidate]]:
    """The candidates of each weight, with errors by quick projections.

    Classes whose projections are found at once come first, so that there are results at any time.
    """
    names = sorted(search.names, key=lambda name: not exact(name))
    tried = [(w, search.structures(name, weight)) for name in names for w, weight in enumerate(weights)]
    tasks: list[Task] = [(w, structures) for w, structures in tried if structures]
    if search.work is not None:
        tasks, _ = within(tasks, weights, SCREENING)
    known = errors_of(session, CHOOSING, weights, tasks, share=_SCREENING)
    return [priced(weight, row) for weight, row in zip(weights, known, strict=True)]


def _refine(shares: Sequence[Share], weights: Sequence[Weight], rows: Rows, session: Session) -> Errors:
    """The errors of each weight's best candidates, by full projections."""
    leaders = [(w, s) for w, row in enumerate(rows) for share in shares for s in share.leaders(w, row)]
    tasks: list[Task] = [(w, [s]) for w, s in dict.fromkeys(leaders) if not exact(s.name)]
    tasks, _ = within(tasks, weights, REFINING, 1.0)
    return errors_of(session, "refining", weights, tasks, effort=1.0, share=1.0)


def _best(
    share: Share, plan: Plan, w: int, weight: Weight, trials: Mapping[Structure, Trial]
) -> Trial | None:
    """For a fraction the best refined trial within the weight's limit, else the plan's choice."""
    if not isinstance(share.budget, float):
        structure = plan.structures.get(weight.name)
        return None if structure is None else trials[structure]
    fitting = [t for s, t in trials.items() if t.refined and share.costs[w][s] <= share.limits[w]]
    return min(fitting, key=lambda trial: (trial.residual, trial.parameters), default=None)


def _weights(
    source: nn.Module | Source,
    skip: Sequence[str],
    filter_fn: FilterFn | None,
    min_features: int,
    loader: Iterable[Any] | None,
) -> tuple[list[Weight], dict[str, str]]:
    """The weights of a module or of tensors, and the reasons why others are left alone."""
    if not isinstance(source, nn.Module):
        if filter_fn is not None or loader is not None:
            raise TypeError("analyze: filter_fn and loader need a module, not a file or mapping of tensors.")
        tensors = open_tensors("analyze", source)
        found, left = find_tensors("analyze", tensors, skip, min_features)
        return list(found), left
    model = nn.ModuleDict({"weight": source}) if parts_of(source) else source
    units, left = find_units(model, filter_fn, min_features)
    for pattern in skip:
        if not any(unit.matches([pattern]) for unit in units):
            raise ValueError(f"analyze: no weight matches skip={pattern!r}.")
    left |= {unit.name: "skipped" for unit in units if unit.matches(skip)}
    return [unit for unit in units if not unit.matches(skip)], left
