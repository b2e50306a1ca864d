"""The structure of every weight: by a plan, or the best under a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ..matrices import get_structure
from .budget import Budget, Bytes, Latency, allowance, check_budget
from .choose import SCREEN_EFFORT, Candidate, Report, Search, Weight, charged, planned, priced, share_out
from .structure import Structure, check_plan
from .tensors_workers import Workers, errors_of

Spec = Budget | Structure | Mapping[str, Structure]


@dataclass(frozen=True)
class Choices:
    """A structure for each weight, its measured milliseconds (dense, then so) or none, and what stays."""

    structures: list[Structure]
    latencies: list[tuple[float | None, float | None]]
    stays: dict[str, str] = field(default_factory=dict)


def check_spec(who: str, spec: object) -> None:
    """Raise for what is neither a budget nor a plan."""
    if isinstance(spec, Mapping):
        check_plan(spec)
    elif isinstance(spec, bool) or not isinstance(spec, float | int | Bytes | Latency | Structure):
        raise TypeError(
            f"{who}: spec must be a fraction, a number of parameters, torchldr.Bytes, torchldr.Latency, a "
            f"torchldr.Structure or a mapping of names to structures, got {spec!r}."
        )
    elif not isinstance(spec, Structure):
        check_budget(who, spec)


def check_count(who: str, **values: object) -> None:
    """Raise for values that are not ints of at least 1."""
    for key, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{who}: {key} must be an int of at least 1, got {value!r}.")


def screen(
    search: Search,
    weights: Sequence[Weight],
    roots: Mapping[str, Tensor],
    seed: int,
    workers: Workers,
    report: Report,
) -> list[list[Candidate]]:
    """What each weight may become, with errors by quick projections; a piece of work for every class."""
    stages, arguments, owners = [], [], []
    for i, weight in enumerate(weights):
        parcel = workers.parcel(weight, roots.get(weight.name))
        for name in dict.fromkeys(search.names):
            if structures := search.structures(name, weight):
                stages.append(f"looking at {weight.name}")
                arguments.append((parcel, structures, seed, SCREEN_EFFORT))
                owners.append(i)
    found = workers.run(stages, errors_of, arguments, report)
    structures_of: list[list[Structure]] = [[] for _ in weights]
    errors: list[list[float]] = [[] for _ in weights]
    for i, (_, structures, *_), values in zip(owners, arguments, found, strict=True):
        structures_of[i] += structures
        errors[i] += values
    return [priced(*row) for row in zip(weights, structures_of, errors, strict=True)]


def chosen(
    who: str,
    spec: Spec,
    weights: Sequence[Weight],
    left: Mapping[str, str],
    names: Sequence[str],
    roots: Mapping[str, Tensor],
    seed: int,
    workers: Workers,
    report: Report,
) -> Choices:
    """The structure of every weight."""
    if isinstance(spec, Structure | Mapping):
        structures = planned(spec, weights, left, who)
        stays = {w.name: "stays dense by the plan" for w, s in zip(weights, structures, strict=True)
                 if s.name == "dense"}  # fmt: skip
        return Choices(structures, [(None, None)] * len(weights), stays)
    for name in names:
        get_structure(name)
    limit, unit, costs = allowance(spec, weights)
    rows = [
        charged(row, costs(weight, [candidate.structure for candidate in row]))
        for weight, row in zip(
            weights, screen(Search(names), weights, roots, seed, workers, report), strict=True
        )
    ]
    taken = share_out(rows, limit, unit, who) if weights else []
    latencies: list[tuple[float | None, float | None]] = [(None, None)] * len(weights)
    if unit == "ms":
        dense = [costs(weight, [Structure("dense")])[0] for weight in weights]
        latencies = [(before, candidate.cost) for before, candidate in zip(dense, taken, strict=True)]
    return Choices([candidate.structure for candidate in taken], latencies)
