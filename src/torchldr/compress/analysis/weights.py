"""`analyze`: what every weight could become, and at what loss."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from ...matrices import get_structure
from ...matrices import structures as known_structures
from ...progress import Report
from ..api import find_metrics
from ..budget import Budget, check_budget
from ..candidates import SCREEN_EFFORT, WORK, Candidate, Search, Weight, exact, priced
from ..checkpoint.files import Source, check_finite, find_tensors, open_tensors
from ..metric import Metric
from ..progress import CHOOSING, Clock, check_effort, shown
from ..selection import check_count
from ..structure import Structure
from ..targets import FilterFn, Unit, describe_site, find_units
from ..workers import Workers, looks_of
from .result import Analysis, Plan, Trial, WeightAnalysis
from .shares import Rows, Share

BUDGETS = (1 / 2, 1 / 5, 1 / 10, 1 / 20)
USUAL_RANKS = (1, 2, 4, 8, 16)
REFINED = 3
EFFORT = 10.0  # minutes
_SCREENING = 0.6  # of the time, for quick looks


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
    effort: float | None = None,
    seed: int = 0,
    jobs: int = 1,
    executor: Executor | None = None,
    progress: bool | Report | None = None,
) -> Analysis:
    """Try every structured class at several ranks on every weight: residual against size.

    All are tried by quick projections. For each budget the best three classes of a weight are then
    projected with full effort, and the best of these is the choice.

    Args:
        source: a module, whose weights are those that `compress_` would replace; or the path of a
            .safetensors file or a mapping of names to tensors, of which every matrix is a weight.
        budget: one or several. A fraction is here of each weight by itself; a number of parameters,
            `Bytes` or `Latency` of all of them together, shared out by residual as `compress_` does.
        structures: names of the classes to try; all by default.
        ranks: to try of the classes that have one, however long it takes. By default 1, 2, 4, 8, 16 and
            the largest that fits each fraction, of low rank some 50; classes whose quick projection would
            take more than some ten seconds are then left out.
        skip: names and patterns of weights to leave alone.
        filter_fn: called with (module, name) for a module; False leaves a layer alone.
        min_features: weights with fewer rows or columns are left alone.
        loader, batches: as for `compress_`: residuals count by the inputs that a module's layers get.
        effort: minutes that it may take, by default 10. Where they are short, or at an interrupt, what was
            found so far is the result, low rank first.
        seed: of the projections.
        jobs: how many processes project; with more than one, a script needs the usual
            `if __name__ == "__main__":`.
        executor, progress: as for `compress_`.

    Returns:
        An `Analysis`: print it, `.plan(budget)`, `.to_json()`, `.save(path)`, `.plot(path)`.

    Examples:
        >>> import torch
        >>> W = torch.randn(64, 2) @ torch.randn(2, 64)
        >>> found = analyze({"W": W}, budget=0.1, structures=["low_rank", "circulant"])
        >>> found.plan(0.1)
        {'W': Structure('low_rank', rank=2)}
    """
    budgets = _budgets(budget)
    search = _search(budgets, structures, ranks)
    check_count("analyze", min_features=min_features, batches=1 if batches is None else batches)
    weights, left = _weights(source, skip, filter_fn, min_features, loader)
    clock = Clock(EFFORT if effort is None else check_effort("analyze", effort))
    if not weights:
        raise ValueError(f"analyze: no weight with two axes of {min_features} or more was found.")
    check_finite("analyze", weights)
    with (
        shown(progress, clock) as report,
        Workers(jobs, executor, clock=clock, report=report, seed=seed) as workers,
    ):
        metrics = _metrics(source, weights, loader, batches, workers)
        rows = _screen(search, weights, metrics, workers)
        shares = [Share(budget, weights, rows) for budget in budgets]
        refined = _refine(shares, weights, rows, metrics, workers)
    rows = [
        [replace(c, error=refined.get((w, c.structure), c.error)) for c in row] for w, row in enumerate(rows)
    ]
    plans = [share.plan(weights, rows) for share in shares]
    analysed = []
    for w, (weight, row) in enumerate(zip(weights, rows, strict=True)):
        trials: dict[Structure, Trial] = {}
        for c in sorted(row, key=lambda c: (c.parameters, c.error)):
            known = exact(c.structure.name) or (w, c.structure) in refined
            trials[c.structure] = Trial(c.structure, c.parameters, c.error**0.5, known)
        best = [_best(share, plan, w, weight, trials) for share, plan in zip(shares, plans, strict=True)]
        m, n = weight.matrices[0].shape
        parts = weight.name, weight.kind, (m, n), len(weight.matrices), weight.size
        analysed.append(WeightAnalysis(*parts, tuple(trials.values()), tuple(best)))
    name = str(os.fspath(source)) if isinstance(source, str | os.PathLike) else None
    return Analysis(budgets, tuple(analysed), tuple(plans), left, name, workers.interrupted)


def _screen(
    search: Search, weights: Sequence[Weight], metrics: Mapping[str, Metric], workers: Workers
) -> list[list[Candidate]]:
    """What each weight may become, with errors by quick projections; a piece of work for every class.

    Classes whose members are found at once come first, so that there is something to show at any time.
    """
    stages, arguments, owners = [], [], []
    seed, clock = workers.seed, workers.clock
    parcels = [workers.parcel(weight, metrics[weight.name]) for weight in weights]
    for name in sorted(dict.fromkeys(search.names), key=lambda name: not exact(name)):
        for i, weight in enumerate(weights):
            if structures := search.structures(name, weight):
                stages.append(f"{CHOOSING} {weight.name}")
                arguments.append((parcels[i], structures, seed, SCREEN_EFFORT, clock.deadline(_SCREENING)))
                owners.append(i)
    found = workers.some(stages, looks_of, arguments, lambda: clock.past(_SCREENING), partial=True)
    known: list[dict[Structure, float]] = [{} for _ in weights]
    for place, values in found.items():
        pairs = zip(arguments[place][1], values, strict=True)
        known[owners[place]] |= {s: error for s, error in pairs if math.isfinite(error)}
    return [priced(w, list(row), list(row.values())) for w, row in zip(weights, known, strict=True)]


def _refine(
    shares: Sequence[Share],
    weights: Sequence[Weight],
    rows: Rows,
    metrics: Mapping[str, Metric],
    workers: Workers,
) -> dict[tuple[int, Structure], float]:
    """The errors of the best candidates by full projections, by the weight's place and the structure."""
    seed, clock = workers.seed, workers.clock
    leaders = [
        (w, s) for w, row in enumerate(rows) for share in shares for s in share.leaders(w, row, REFINED)
    ]
    tasks = [(w, s) for w, s in dict.fromkeys(leaders) if not exact(s.name)]
    arguments = [
        (workers.parcel(weights[w], metrics[weights[w].name]), [structure], seed, 1.0, clock.deadline(1.0))
        for w, structure in tasks
    ]
    stages = [f"refining {weights[w].name}" for w, _ in tasks]
    found = workers.some(stages, looks_of, arguments, lambda: clock.past(1.0), partial=True)
    return {tasks[place]: error for place, (error,) in found.items() if math.isfinite(error)}


def _best(
    share: Share, plan: Plan, w: int, weight: Weight, trials: Mapping[Structure, Trial]
) -> Trial | None:
    """For a fraction the best that is known well and fits the weight's part; else what the plan has."""
    if not isinstance(share.budget, float):
        structure = plan.structures.get(weight.name)
        return None if structure is None else trials[structure]
    fitting = [t for s, t in trials.items() if t.refined and share.costs[w][s] <= share.limits[w]]
    return min(fitting, key=lambda trial: (trial.residual, trial.parameters), default=None)


def _budgets(budget: Budget | Sequence[Budget]) -> tuple[Budget, ...]:
    budgets = tuple(budget) if isinstance(budget, list | tuple) else (budget,)
    for one in budgets:
        check_budget("analyze", one)
    if not budgets:
        raise ValueError("analyze: budget must be one or more, got none.")
    return tuple(dict.fromkeys(budgets))


def _search(
    budgets: Sequence[Budget], structures: Sequence[str] | None, ranks: Sequence[int] | None
) -> Search:
    if isinstance(structures, str):
        raise TypeError(f"analyze: structures must be a sequence of names, got {structures!r}.")
    names = [get_structure(name).name for name in structures or known_structures()]
    for rank in ranks or ():
        check_count("analyze", ranks=rank)
    shares = [budget for budget in budgets if isinstance(budget, float)]
    return Search(names, ranks, USUAL_RANKS, WORK if ranks is None else None, shares)


def _weights(
    source: nn.Module | Source,
    skip: Sequence[str],
    filter_fn: FilterFn | None,
    min_features: int,
    loader: Iterable[Any] | None,
) -> tuple[list[Weight], dict[str, str]]:
    """The weights of a module or of tensors, and why others are left alone."""
    if not isinstance(source, nn.Module):
        if filter_fn is not None or loader is not None:
            raise TypeError("analyze: filter_fn and loader need a module, a file has tensors alone.")
        tensors = open_tensors("analyze", source)
        found, left = find_tensors("analyze", tensors, skip, min_features)
        return list(found), left

    def keep(module: nn.Module, name: str) -> bool:
        return filter_fn is None or filter_fn(module, name)

    alone = describe_site(source, [""]) is not None
    model = nn.ModuleDict({"weight": source}) if alone else source
    units, left = find_units(model, keep, min_features)
    for pattern in skip:
        if not any(fnmatchcase(alias, pattern) for unit in units for alias in unit.aliases):
            raise ValueError(f"analyze: no weight matches skip={pattern!r}.")
    kept: list[Unit] = []
    for unit in units:
        if any(fnmatchcase(alias, pattern) for alias in unit.aliases for pattern in skip):
            left[unit.name] = "skipped"
        else:
            kept.append(unit)
    return list(kept), left


def _metrics(
    source: nn.Module | Source,
    weights: Sequence[Weight],
    loader: Iterable[Any] | None,
    batches: int | None,
    workers: Workers,
) -> dict[str, Metric]:
    """Squares of relative residuals, by the inputs of a module's layers where there is a loader."""
    found: dict[str, Metric] = {}
    if loader is not None and isinstance(source, nn.Module):
        units = [weight for weight in weights if isinstance(weight, Unit)]
        found, _ = find_metrics("analyze", source, units, None, loader, batches, None, workers)
    return {w.name: Metric(found[w.name].inputs if w.name in found else None).relative(1, w.matrices)
            for w in weights}  # fmt: skip
