"""How far weights are from what they may become, and what they are projected on: work for `Workers`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..matrices import Projection, get_structure
from .candidates import Weight, at_once, exact
from .finetuning.groups import operator_names
from .metric import PLAIN, QUICK, TimeUpError, project, widened
from .progress import CHOOSING, PROJECTING
from .structure import Structure
from .workers import Parcel, Workers

DEADLINE = 0.9  # of the time: then projections are quick ones
_LARGE = 1 << 16
Errors = list[dict[Structure, float]]  # of each weight


def first_looks(
    workers: Workers,
    weights: Sequence[Weight],
    low: Sequence[Sequence[Structure]],
    others: Sequence[Sequence[Structure]],
) -> tuple[Errors, Errors, Errors]:
    """Errors of low rank, in the metric and in the plain norm (by entries), and bounds of others in that."""
    stages = [f"{CHOOSING} {weight.name}" for weight in weights]
    tasks = [(workers.parcel(w), *some, workers.seed) for w, *some in zip(weights, low, others, strict=True)]
    keys = [f"first look at {weight.name}" for weight in weights]
    errors, plain, bounds = Errors(), Errors(), Errors()
    for i, (first, same, least) in workers.run(stages, first_look, tasks, keys=keys).items():
        errors.append(dict(zip(low[i], first, strict=True)))
        plain.append(dict(zip(low[i], same, strict=True)))
        bounds.append(dict(zip(others[i], least, strict=True)))
    return errors, plain, bounds


def first_look(
    parcel: Parcel, low: Sequence[Structure], others: Sequence[Structure], seed: int
) -> list[list[float]]:
    """What is known of a weight without slow projections, as `first_looks` has it."""
    matrices = parcel.matrices
    curve = plain_curve(matrices)
    scale = sum(W.numel() for W in matrices) / (curve[0] or 1.0)
    bounds: dict[Structure, float] = {}
    for name in dict.fromkeys(s.name for s in others):
        some = [s for s in others if s.name == name]
        parts = [_bounds(W, some, seed) for W in matrices]
        bounds |= {s: scale * sum(part) for s, part in zip(some, zip(*parts, strict=True), strict=True)}
    errors = looks_of(parcel, low, seed, QUICK)
    plain = [scale * curve[min(s.rank or 1, len(curve) - 1)] for s in low]
    return [errors, plain, [bounds[s] for s in others]]


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

    Where a class's operators are fixed, the displacement of W - M is at most |nabla| |W - M| long, and
    that of M has a small rank, so that the tail of the singular values of W's displacement bounds |W - M|.
    Nothing is known (0) of classes that learn their operators or have none.
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
    """At least the spectral norm; that of a shift exactly."""
    return float(A.abs().sum(0).max() * A.abs().sum(1).max()) ** 0.5


def errors_of(
    workers: Workers,
    stage: str,
    weights: Sequence[Weight],
    tasks: Sequence[tuple[int, list[Structure]]],
    effort: float,
    share: float | None,
    plain: bool = False,
) -> Errors:
    """`looks_of` some structures of some weights, which the tasks give by their places: errors by weight.

    As far as this share of the time goes, None for all; in the workers' metrics or in the plain norm.
    """
    clock, look = workers.clock, "plain look" if plain else "look"
    parcels = {w: workers.parcel(weights[w], plain=plain) for w, _ in tasks}
    until = None if share is None else clock.deadline(share)
    arguments = [(parcels[w], structures, workers.seed, effort, until) for w, structures in tasks]
    named = [(weights[w].name, ", ".join(map(str, structures))) for w, structures in tasks]
    found = workers.run(
        [f"{stage} {name}" for name, _ in named],
        looks_of,
        arguments,
        lambda: share is not None and clock.past(share),
        keys=[f"{look} at {name} as {what}" for name, what in named],
        keep=lambda errors: all(map(math.isfinite, errors)),  # what was given up is looked at again
    )
    known: Errors = [{} for _ in weights]
    for i, errors in found.items():
        w, structures = tasks[i]
        known[w] |= {s: error for s, error in zip(structures, errors, strict=True) if math.isfinite(error)}
    return known


def looks_of(
    parcel: Parcel, structures: Sequence[Structure], seed: int, effort: float, deadline: float | None = None
) -> list[float]:
    """The errors of structures in a metric, by projections; of all ranks by one decomposition where it can.

    Infinite where the deadline (by `time.time()`) came first.
    """
    matrices, metric = parcel.matrices, parcel.metric()
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
        # Weights are known to their rounding errors: nothing is gained below these.
        found.append(error if error > exact * whole else 0.0)
    return found


def projections(parcel: Parcel, structure: Structure, seed: int, deadline: float | None) -> list[Any]:
    """The projections of a parcel, packed; none where it stays dense. `deadline` as for `project`."""
    if structure.is_dense:
        return []
    metric = parcel.metric()
    return packed([project(W, structure, metric, seed, 1.0, deadline) for W in parcel.matrices])


def packed(made: Sequence[Projection]) -> list[Any]:
    """Projections as a piece."""
    return [[p.matrix.name, tuple(p.matrix.shape), p.matrix.options, p.matrix.tensors, *p[1:]] for p in made]


def unpacked(piece: Sequence[Any], device: torch.device) -> list[Projection]:
    """Projections again, on a device: files and processes give back the CPU's."""
    return [
        Projection(get_structure(name).unchecked(m, n, tensors, options).to(device), *residuals)
        for name, (m, n), options, tensors, *residuals in piece
    ]


def project_all(
    workers: Workers, weights: Sequence[Weight], structures: Sequence[Structure]
) -> list[list[Projection]]:
    """`projections` of each of the weights, wherever the workers are; quick ones where time is short."""
    pairs, deadline = list(zip(weights, structures, strict=True)), workers.clock.deadline(DEADLINE)
    stages = [f"{PROJECTING} {weight.name}" for weight in weights]
    arguments = [(workers.parcel(w), s, workers.seed, deadline) for w, s in pairs]
    keys = [f"{weight.name} projected as {structure}" for weight, structure in pairs]
    made = workers.run(stages, projections, arguments, keys=keys).values()
    return [unpacked(some, w.matrices[0].device) for w, some in zip(weights, made, strict=True)]
