"""The structures that a weight may become, and the cost of trying them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Protocol

import torch
from torch import Tensor

from ..matrices import get_structure, structures
from .structure import DENSE, Structure

CANDIDATES = tuple(name for name, cls in structures().items() if cls.compresses)
MOST_RANKS = 48
# A quick projection of rank r takes r (r + 3) / 4 times as long as one of rank 1 (the class's
# `projection_work` an entry); of matrices with fewer entries than `_LEAST`, as long as of these.
_LEAST = 1 << 14
WORK = 3 << 20


class Weight(Protocol):
    """Matrices that take one structure, and what they are called."""

    @property
    def kind(self) -> str: ...
    @property
    def names(self) -> list[str]: ...
    @property
    def aliases(self) -> list[str]: ...
    @property
    def matrices(self) -> list[Tensor]: ...

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def size(self) -> int:
        return sum(W.numel() for W in self.matrices)

    def matches(self, patterns: Iterable[str]) -> bool:
        """Whether one of these is one of its names, or a pattern that fits one."""
        return any(fnmatchcase(alias, pattern) for alias in self.aliases for pattern in patterns)


def check_finite(who: str, weights: Sequence[Weight], what: str = "") -> None:
    """Raise for a weight with entries that are not finite, or without any numbers (on the meta device).

    The error says `what` before the weight's name.
    """
    for weight in weights:
        for W in weight.matrices:
            if W.is_meta:
                raise ValueError(f"{who}: {what}{weight.name} is on the meta device: load it first.")
            if not W.isfinite().all():
                raise ValueError(f"{who}: {what}{weight.name} has entries that are not finite.")


@dataclass(frozen=True)
class Candidate:
    """A structure for a weight: parameters, its error, its cost in the budget's unit."""

    structure: Structure
    parameters: int
    error: float
    cost: float = 0.0


@dataclass(frozen=True)
class Search:
    """Which structures are looked at.

    A projection of rank r includes those of all lower ranks, so only a few ranks are tried. Low rank is tried
    at up to `MOST_RANKS` ranks, because one SVD gives all residuals. Classes with an exact solution are
    always tried.
    """

    names: Sequence[str]  # of the classes
    ranks: Sequence[int] | None = None  # these ranks for every class with ranks; None for the above
    usual: Sequence[int] = (1, 2, 4)  # the few ranks
    work: int | None = WORK  # limit of a quick projection, roughly in microseconds; None for no limit
    shares: Sequence[float] = ()  # of the weight: the largest rank within each is tried too

    def structures(self, name: str, weight: Weight) -> list[Structure]:
        """The structures of a class, all smaller than the weight itself."""
        matrices, cls = weight.matrices, get_structure(name)
        smallest, entries = min(min(W.shape) for W in matrices), max(W.numel() for W in matrices)
        found = []
        for options in cls.variants(smallest, smallest) if cls.structured else ():
            if not cls.ranked:
                found.append(Structure(name, **options))
                continue
            ranks = set(self._ranks(name, smallest))
            size = lambda rank, options=options: Structure(name, rank, **options).parameters_of(matrices)
            for share in self.shares if self.ranks is None else ():
                ranks.add(bisect_right(range(1, smallest + 1), share * weight.size, key=size))
            found += [Structure(name, rank, **options) for rank in sorted(ranks) if 1 <= rank <= smallest]
        return [s for s in found if self._affordable(s, entries) and s.parameters_of(matrices) < weight.size]

    def _ranks(self, name: str, smallest: int) -> Sequence[int]:
        if self.ranks is not None:
            return self.ranks
        if at_once(name):
            step = max(1, smallest // MOST_RANKS)
            return 1, 2, 3, *range(step, smallest + 1, step)
        return self.usual

    def _affordable(self, structure: Structure, entries: int) -> bool:
        return self.work is None or _work(structure, entries) <= self.work


def _work(structure: Structure, entries: int) -> float:
    """Work of a quick projection of a matrix with this many entries: roughly microseconds on one core."""
    rank = structure.rank or 1
    return max(entries, _LEAST) * structure.cls.projection_work * rank * (rank + 3) / 4


def work_of(structure: Structure, weight: Weight) -> float:
    """Work of a quick projection of all matrices of a weight."""
    return sum(_work(structure, W.numel()) for W in weight.matrices)


def class_names(who: str, structures: Iterable[str]) -> list[str]:
    """The names of the classes to look at, each once, or an error."""
    if isinstance(structures, str):
        raise TypeError(f"{who}: structures must be a sequence of names, got {structures!r}.")
    return list(dict.fromkeys(get_structure(name).name for name in structures))


def exact(name: str) -> bool:
    """Whether the nearest member of a class is found at once, at any effort."""
    return get_structure(name).projection_work == 0


def at_once(name: str) -> bool:
    """Whether the nearest members of a class of all ranks come from one decomposition."""
    cls = get_structure(name)
    return cls.ranked and cls.all_ranks(torch.ones(1, 1, dtype=torch.float64), None, None) is not None


def priced(weight: Weight, errors: Mapping[Structure, float]) -> list[Candidate]:
    """Candidates with their parameters and errors, and the dense weight itself as the last."""
    rows = [
        Candidate(structure, structure.parameters_of(weight.matrices), e) for structure, e in errors.items()
    ]
    return [*rows, Candidate(DENSE, weight.size, 0.0)]


def charged(rows: Sequence[Candidate], costs: Sequence[float]) -> list[Candidate]:
    """The candidates with these costs, by growing cost."""
    return sorted(
        (replace(row, cost=cost) for row, cost in zip(rows, costs, strict=True)),
        key=lambda row: (row.cost, row.error),
    )
