"""Errors of candidate structures, and projections of the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..matrices import Projection, get_structure
from .candidates import Weight, at_once, exact, work_of
from .finetuning.groups import operator_names
from .metric import PLAIN, QUICK, Metric, TimeUpError, project, widened
from .session import Session
from .structure import Structure

CHOOSING, PROJECTING = "looking at", "projecting"  # stages
DEADLINE = 0.9  # of a time limit: then projections are quick ones
_LARGE = 1 << 16
Errors = list[dict[Structure, float]]  # of each weight
Task = tuple[int, Sequence[Structure]]  # a weight's index, and structures to try on it


def plain_errors(
    weight: Weight, low: Sequence[Structure], others: Sequence[Structure], seed: int
) -> tuple[dict[Structure, float], dict[Structure, float]]:
    """In the plain norm: the errors of low rank, and lower bounds for other classes."""
    curve = plain_curve(weight.matrices)
    scale = weight.size / (curve[0] or 1.0)
    least: dict[Structure, float] = {}
    for name in dict.fromkeys(s.name for s in others):
        some = [s for s in others if s.name == name]
        parts = [_bounds(W, some, seed) for W in weight.matrices]
        least |= {s: scale * sum(part) for s, part in zip(some, zip(*parts, strict=True), strict=True)}
    return {s: scale * curve[min(s.rank or 1, len(curve) - 1)] for s in low}, least


def _bounds(W: Tensor, some: Sequence[Structure], seed: int) -> list[float]:
    """Lower bounds of |W - M|^2 for structures of one class; the error itself where it is found at once.

    Even that takes long for many structures of a large matrix: then nothing is known.
    """
    if not exact(some[0].name):
        return bound(W, some[0].name, [s.rank or 1 for s in some])
    if W.numel() > _LARGE:
        return [0.0] * len(some)
    whole = float(W.double().square().sum())
    return [whole * project(W, s, PLAIN, seed, QUICK).residual ** 2 for s in some]


def plain_curve(matrices: Sequence[Tensor]) -> list[float]:
    """|W - M|^2 of the nearest matrices of rank 0, 1, .., summed over the matrices."""
    squares = []
    for W in matrices:
        wide = widened(W)
        gram = wide @ wide.mT if wide.shape[0] <= wide.shape[1] else wide.mT @ wide
        squares.append(torch.linalg.eigvalsh(gram).clamp(min=0))
    length = max(map(len, squares))
    tails = torch.stack([pad(s, (length - len(s), 0)) for s in squares]).sum(0).cumsum(0)
    return [*tails.flip(0).tolist(), 0.0]


def bound(W: Tensor, name: str, ranks: Sequence[int]) -> list[float]:
    """A lower bound of |W - M|^2 over the members M of each rank, without a projection.

    For fixed operators, the displacement of W - M has at most the norm |nabla| |W - M|, and that of M has a
    small rank. So the tail of the singular values of W's displacement bounds |W - M|. For classes that learn
    their operators or have none the bound is 0.
    """
    cls, (m, n) = get_structure(name), W.shape
    if not cls.ranked or operator_names(cls):
        return [0.0] * len(ranks)
    some = cls.random(m, n, rank=1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    known = some.displacement_structure()
    if known is None:
        return [0.0] * len(ranks)
    a, b = (_norm(operator.to_dense()) for operator in (known.A, known.B))
    largest = 1 + a * b if known.form == "stein" else a + b
    D = known.of_dense(W.detach().to("cpu", torch.float64))
    curve = plain_curve([D])
    return [curve[min(known.rank * rank, len(curve) - 1)] / largest**2 for rank in ranks]


def _norm(A: Tensor) -> float:
    """An upper bound of the spectral norm, exact for shifts."""
    return float(A.abs().sum(0).max() * A.abs().sum(1).max()) ** 0.5


def within(
    tasks: Sequence[Task], weights: Sequence[Weight], work: float, effort: float = QUICK
) -> tuple[list[Task], float]:
    """The tasks that fit into this much work, in order, and the remaining work: counted, not timed."""
    kept = []
    for w, structures in tasks:
        needed = effort / QUICK * sum(work_of(structure, weights[w]) for structure in structures)
        if needed <= work:
            kept.append((w, structures))
            work -= needed
    return kept, work


def errors_of(
    session: Session,
    stage: str,
    weights: Sequence[Weight],
    tasks: Sequence[Task],
    *,
    effort: float = QUICK,
    share: float | None = None,
    plain: bool = False,
) -> Errors:
    """Errors of the tasks' structures (see `projection_errors`) by weight.

    In the weights' metrics, or in the plain norm. `share` is the part of the time limit that may be used.
    """
    until = None if share is None else session.deadline(share)
    known: Errors = [{} for _ in weights]
    try:
        for done, (w, structures) in enumerate(tasks):
            if session.interrupted or (share is not None and session.past(share)):
                break
            weight = weights[w]
            session.report(f"{stage} {weight.name}", done, len(tasks))
            metric = PLAIN.relative(weight.size, weight.matrices) if plain else session.metric(weight)
            errors = projection_errors(weight.matrices, metric, structures, session.seed, effort, until)
            known[w] |= {
                s: error for s, error in zip(structures, errors, strict=True) if math.isfinite(error)
            }
    except KeyboardInterrupt:
        if not (session.partial and any(known)):
            raise
        session.interrupted = True
    return known


def projection_errors(
    matrices: Sequence[Tensor],
    metric: Metric,
    structures: Sequence[Structure],
    seed: int,
    effort: float,
    deadline: float | None = None,
) -> list[float]:
    """The errors of structures in a metric, by projection, or by one decomposition for all ranks.

    A structure that was not finished by the deadline (by `time.monotonic()`) gets an infinite error.
    """
    fits = {
        name: [metric.fit(W, Structure(name)) for W in matrices]
        for name in dict.fromkeys(s.name for s in structures)
        if at_once(name)
    }
    exact = min(max(1e-10, 8 * torch.finfo(matrices[0].dtype).eps), 1e-3) ** 2
    whole = sum(metric.error(W) for W in matrices)
    found = []
    for structure in structures:
        if structure.name in fits:
            error = metric.scale * sum(fit.error(structure.rank or 1) for fit in fits[structure.name] if fit)
        else:
            try:
                made = [project(W, structure, metric, seed, effort, deadline, quick=False) for W in matrices]
            except TimeUpError:
                found.append(math.inf)
                continue
            pairs = [(widened(W), p.matrix) for W, p in zip(matrices, made, strict=True)]
            error = sum(metric.error(W - M.to(W.device, W.dtype).to_dense()) for W, M in pairs)
        # A weight is known only up to rounding, so smaller errors count as 0.
        found.append(error if error > exact * whole else 0.0)
    return found


def project_all(
    session: Session, weights: Sequence[Weight], structures: Sequence[Structure]
) -> list[list[Projection]]:
    """Projections of the matrices of every weight, none if it stays dense; quick ones past the deadline."""
    deadline, made = session.deadline(DEADLINE), list[list[Projection]]()
    for done, (weight, structure) in enumerate(zip(weights, structures, strict=True)):
        session.report(f"{PROJECTING} {weight.name}", done, len(weights))
        if structure.is_dense:
            made.append([])
            continue
        metric = session.metric(weight)
        made.append([project(W, structure, metric, session.seed, 1.0, deadline) for W in weight.matrices])
    return made
