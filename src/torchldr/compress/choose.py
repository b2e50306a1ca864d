"""What a weight may become and how far that is from it; a budget shared out over the weights."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from ..matrices import from_dense, get_structure
from .structure import Structure, matching

CANDIDATES = ("low_rank", "block_circulant", "toeplitz_like", "ldr_sd")
SCREEN_EFFORT = 0.1
# Their nearest members are found at once, at any effort.
EXACT = frozenset(("dense", "low_rank", "circulant", "block_circulant"))
MOST_RANKS = 48
# A quick projection of rank r takes some r (r + 3) / 4 microseconds an entry, and that times this; of
# matrices with fewer entries than `_LEAST`, as long as of these.
_LEAST = 1 << 14
_WORK = {
    **dict.fromkeys(("acdc", "cauchy_like", "hankel_like", "toeplitz_like", "vandermonde_like"), 1),
    "fastfood": 4,
    "ldr_sd": 12,
    "ldr_td": 48,
}
_UNKNOWN_WORK = 12
WORK = 3 << 20

Report = Callable[[str, int, int], None]


class Weight(Protocol):
    """Matrices that take one structure, and what they are called."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def names(self) -> list[str]: ...
    @property
    def aliases(self) -> list[str]: ...
    @property
    def size(self) -> int: ...
    @property
    def matrices(self) -> list[Tensor]: ...


@dataclass(frozen=True)
class Candidate:
    """A structure for a weight: parameters, the square of its residual, its cost in the budget's unit."""

    structure: Structure
    parameters: int
    error: float
    cost: float = 0.0


@dataclass(frozen=True)
class Search:
    """Which structures are looked at.

    Projections of a rank contain those of all lower ranks, so few ranks are looked at; of low rank, whose
    residuals all come from one SVD, some `MOST_RANKS` over the whole range.

    Args:
        names: of the classes.
        ranks: of the classes that have one, for all of these; None for the above.
        usual: the few ranks.
        work: how long a quick look may take, in microseconds or so, or None for no limit. Classes that are
            solved exactly are always looked at.
        shares: fractions of the weight for each of which the largest rank that fits is looked at too.
    """

    names: Sequence[str]
    ranks: Sequence[int] | None = None
    usual: Sequence[int] = (1, 2, 4)
    work: int | None = WORK
    shares: Sequence[float] = ()

    def structures(self, name: str, weight: Weight) -> list[Structure]:
        """The structures of a class, all smaller than the weight itself."""
        shapes = [(W.shape[0], W.shape[1]) for W in weight.matrices]
        smallest = min(min(shape) for shape in shapes)

        def parameters(structure: Structure) -> int:
            return sum(structure.parameters(*shape) for shape in shapes)

        if name == "dense":
            found = []
        elif name == "block_circulant":
            found = [Structure(name, block_size=2**i) for i in range(1, 12) if 2**i <= smallest]
        elif not get_structure(name).ranked:
            found = [Structure(name)]
        else:
            ranks = set(self._ranks(name, smallest))
            for share in self.shares if self.ranks is None else ():
                fits = lambda rank: parameters(Structure(name, rank))
                ranks.add(bisect_right(range(1, smallest + 1), share * weight.size, key=fits))
            found = [Structure(name, rank) for rank in sorted(ranks) if 1 <= rank <= smallest]
        entries = max(m * n for m, n in shapes)
        return [s for s in found if self._affordable(s, entries) and parameters(s) < weight.size]

    def _ranks(self, name: str, smallest: int) -> Sequence[int]:
        if self.ranks is not None:
            return self.ranks
        if name == "low_rank":
            step = max(1, smallest // MOST_RANKS)
            return 1, 2, 3, *range(step, smallest + 1, step)
        return self.usual

    def _affordable(self, structure: Structure, entries: int) -> bool:
        if self.work is None or structure.name in EXACT:
            return True
        name, rank = structure.name, structure.rank or 1
        return max(entries, _LEAST) * _WORK.get(name, _UNKNOWN_WORK) * rank * (rank + 3) / 4 <= self.work


def errors(
    matrices: Sequence[Tensor],
    structures: Sequence[Structure],
    root: Tensor | None = None,
    seed: int = 0,
    effort: float = SCREEN_EFFORT,
) -> list[float]:
    """The square of the relative residual of each structure.

    Args:
        matrices: those of a weight.
        structures: what to project them on.
        root: R with R^T R = X^T X for the inputs X that errors count by.
        seed, effort: of the projections. Of low rank the singular values say it, without a projection.
    """
    weights = [_seen(W, root).norm().item() ** 2 for W in matrices]
    whole = sum(weights) or 1.0
    tails = [torch.linalg.svdvals(_seen(W, root)) for W in matrices if _any(structures, "low_rank")]
    found = []
    for structure in structures:
        lost = 0.0
        if structure.name == "low_rank":
            lost = sum(float(tail[structure.rank or 1 :].square().sum()) for tail in tails)
        elif structure.name != "dense":
            for W, weight in zip(matrices, weights, strict=True):
                settings = {"activations": root, "seed": seed, "effort": effort, **structure.options}
                made = from_dense(W, structure.name, structure.rank, **settings)
                residual = made.residual if made.weighted_residual is None else made.weighted_residual
                lost += residual**2 * weight
        # Weights are known to their rounding errors: nothing is gained below these.
        exact = min(max(1e-10, 8 * torch.finfo(matrices[0].dtype).eps), 1e-3)
        found.append(lost / whole if lost > exact**2 * whole else 0.0)
    return found


def _any(structures: Sequence[Structure], name: str) -> bool:
    return any(structure.name == name for structure in structures)


def _seen(W: Tensor, root: Tensor | None) -> Tensor:
    wide = W.detach().to("cpu", torch.float64)
    return wide if root is None else wide @ root.T


def priced(weight: Weight, structures: Sequence[Structure], found: Sequence[float]) -> list[Candidate]:
    """Candidates with their parameters and errors, and the dense weight itself as the last."""
    shapes = [(W.shape[0], W.shape[1]) for W in weight.matrices]
    rows = [
        Candidate(structure, sum(structure.parameters(*shape) for shape in shapes), error)
        for structure, error in zip(structures, found, strict=True)
    ]
    return [*rows, Candidate(Structure("dense"), weight.size, 0.0)]


def charged(rows: Sequence[Candidate], costs: Sequence[float]) -> list[Candidate]:
    """The candidates with these costs, by growing cost."""
    return sorted(
        (replace(row, cost=cost) for row, cost in zip(rows, costs, strict=True)),
        key=lambda row: (row.cost, row.error),
    )


def share_out(
    choices: Sequence[Sequence[Candidate]], limit: float, unit: str = "parameters", who: str = "compress_"
) -> list[Candidate]:
    """One candidate for each weight, with costs of at most `limit` together.

    Every weight starts at its cheapest candidate. Then, again and again, the step that lowers the sum of
    squared residuals most for what it costs is taken, among those that still fit.

    Args:
        choices: the candidates of every weight, by growing cost.
        limit: of the sum of costs.
        unit, who: for the error.

    Raises:
        ValueError: where even the cheapest candidates do not fit.
    """
    taken = [row[0] for row in choices]
    rest = limit - sum(candidate.cost for candidate in taken)
    if rest < 0:
        raise ValueError(
            f"{who}: a budget of {_amount(limit, unit)} {unit} is too small, the smallest candidates have "
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
    """The best step from here that fits, if any lowers the error."""
    fits = [c for c in row if 0 <= c.cost - now.cost <= rest and c.error < now.error]
    return max(fits, key=lambda c: _slope(now, c), default=None)


def planned(
    spec: Structure | Mapping[str, Structure],
    weights: Sequence[Weight],
    left: Mapping[str, str],
    who: str = "compress_",
) -> list[Structure]:
    """The structure that a plan has for every weight, checked against its shapes.

    Raises:
        ValueError: for an entry that matches nothing, or a structure that does not fit.
    """
    if isinstance(spec, Structure):
        chosen = [spec] * len(weights)
    else:
        keys = [matching(spec, weight.aliases) for weight in weights]
        chosen = [Structure("dense") if key is None else spec[key] for key in keys]
        for key in spec:
            if not any(matching({key: spec[key]}, weight.aliases) for weight in weights):
                what = "tensor" if all(weight.kind == "tensor" for weight in weights) else "layer"
                why = next((f" ({name} {left[name]})" for name in (key, f"{key}.weight") if name in left), "")
                raise ValueError(f"{who}: {key!r} matches no {what} that can be replaced{why}.")
    for weight, structure in zip(weights, chosen, strict=True):
        for W in weight.matrices:
            try:
                structure.parameters(*W.shape)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{who}: {weight.name}: {error}") from None
    return chosen
