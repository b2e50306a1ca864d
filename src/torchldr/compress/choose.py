"""A budget shared out over the weights: candidates for each, then greedily by what they gain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..matrices import from_dense, get_structure
from .sites import Unit
from .structure import Structure

CANDIDATES = ("low_rank", "block_circulant", "toeplitz_like", "ldr_sd")
SCREEN_EFFORT = 0.1
# Projections of a rank contain those of all lower ranks, so few ranks of the slow classes are looked at.
SLOW_RANKS = (1, 2, 4)
# Entries up to which they are looked at, a few seconds each: learned operators take longest to find.
SLOW_ENTRIES, LEARNED_ENTRIES = 1 << 18, 1 << 16
MOST_RANKS = 48

Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Candidate:
    """A structure for a weight: its parameters and the square of its residual."""

    structure: Structure
    parameters: int
    error: float


def candidates(unit: Unit, names: Sequence[str], root: Tensor | None, seed: int) -> list[Candidate]:
    """What a weight may become, by growing size; the last one is the dense weight itself."""
    found = [Candidate(Structure("dense"), unit.size, 0.0)]
    smallest = min(min(W.shape) for W in unit.matrices)
    for name in names:
        for structure in _grid(name, unit, smallest):
            size = sum(structure.parameters(*W.shape) for W in unit.matrices)
            if size < unit.size:
                found.append(Candidate(structure, size, -1.0))
    lows = [_spectrum(W, root) for W in unit.matrices] if "low_rank" in names else []
    measured = [_measured(candidate, unit, root, seed, lows) for candidate in found]
    return sorted(measured, key=lambda c: (c.parameters, c.error))


def _grid(name: str, unit: Unit, smallest: int) -> list[Structure]:
    if name == "dense":
        return []
    if name == "block_circulant":
        sizes = [2**i for i in range(1, 12) if 2**i <= smallest]
        return [Structure(name, block_size=size) for size in sizes]
    if not get_structure(name).ranked:
        return [Structure(name)]
    if name == "low_rank":
        step = max(1, smallest // MOST_RANKS)
        ranks = sorted({1, 2, 3, *range(step, smallest + 1, step)})
        return [Structure(name, rank) for rank in ranks if rank <= smallest]
    limit = LEARNED_ENTRIES if name.startswith("ldr") else SLOW_ENTRIES
    if max(W.numel() for W in unit.matrices) > limit:
        return []
    return [Structure(name, rank) for rank in SLOW_RANKS if rank <= smallest]


def _measured(
    candidate: Candidate, unit: Unit, root: Tensor | None, seed: int, lows: list[Tensor]
) -> Candidate:
    """The candidate with its error: of low rank from the singular values, else from a quick projection."""
    structure = candidate.structure
    if structure.name == "dense":
        return candidate
    weights = [_norm(W, root) ** 2 for W in unit.matrices]
    whole = sum(weights) or 1.0
    if structure.name == "low_rank":
        error = sum(float(tail[structure.rank or 1 :].square().sum()) for tail in lows)
    else:
        error = 0.0
        for W, weight in zip(unit.matrices, weights, strict=True):
            found = from_dense(
                W,
                structure.name,
                structure.rank,
                activations=root,
                seed=seed,
                effort=SCREEN_EFFORT,
                **structure.options,
            )
            residual = found.residual if found.weighted_residual is None else found.weighted_residual
            error += residual**2 * weight
    return Candidate(structure, candidate.parameters, error / whole)


def _spectrum(W: Tensor, root: Tensor | None) -> Tensor:
    wide = W.to("cpu", torch.float64)
    return torch.linalg.svdvals(wide if root is None else wide @ root.T)


def _norm(W: Tensor, root: Tensor | None) -> float:
    wide = W.to("cpu", torch.float64)
    return float((wide if root is None else wide @ root.T).norm())


def share_out(choices: Sequence[Sequence[Candidate]], budget: int) -> list[Candidate]:
    """One candidate for each weight, with at most `budget` parameters together.

    Every weight starts at its smallest candidate. Then, again and again, the step that lowers the sum of
    squared residuals most for each parameter that it adds is taken, among those that still fit.

    Raises:
        ValueError: where even the smallest candidates do not fit.
    """
    taken = [row[0] for row in choices]
    rest = budget - sum(candidate.parameters for candidate in taken)
    if rest < 0:
        least = budget - rest
        raise ValueError(
            f"compress_: a budget of {budget} parameters is too small, the smallest candidates have {least}."
        )
    best = [_step(row, now, rest) for row, now in zip(choices, taken, strict=True)]
    while True:
        for i, step in enumerate(best):
            if step is not None and step.parameters - taken[i].parameters > rest:
                best[i] = _step(choices[i], taken[i], rest)
        open_ones = [(i, step) for i, step in enumerate(best) if step is not None]
        if not open_ones:
            return taken
        i, step = max(open_ones, key=lambda pair: _slope(taken[pair[0]], pair[1]))
        rest -= step.parameters - taken[i].parameters
        taken[i] = step
        best[i] = _step(choices[i], step, rest)


def _slope(now: Candidate, then: Candidate) -> float:
    return (now.error - then.error) / max(then.parameters - now.parameters, 1e-9)


def _step(row: Sequence[Candidate], now: Candidate, rest: int) -> Candidate | None:
    """The best step from here that fits, if any lowers the error."""
    fits = [c for c in row if 0 <= c.parameters - now.parameters <= rest and c.error < now.error]
    return max(fits, key=lambda c: _slope(now, c), default=None)


def choose(
    units: Sequence[Unit],
    budget: int,
    names: Sequence[str],
    roots: Mapping[str, Tensor],
    seed: int,
    report: Report,
) -> list[Structure]:
    """The structure of every weight under a budget."""
    rows = []
    for i, unit in enumerate(units):
        report(f"looking at {unit.name}", i, len(units))
        rows.append(candidates(unit, names, roots.get(unit.name), seed))
    return [candidate.structure for candidate in share_out(rows, budget)]
