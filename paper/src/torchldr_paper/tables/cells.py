"""What the paper's tables are made of: numbers of the paper, each with the run that stands beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from ..protocol import Run

LOW_RANK_START = {"init_std": 0.01, "output_std": 3.0}  # the best of `scales` on Rectangles, by validation


@dataclass(frozen=True)
class Cell:
    """One number of the paper, or one that belongs beside it.

    Its metric is "test", "mean" (of the trials at the best learning rate), "generalization" (training less
    test accuracy), "perplexity" (of the test part: less is better) or "int8" (the mean of the trials with
    rounded weights).
    """

    run: Run  # what to run, from seed 0 and by the full protocol
    paper: float | None  # the paper's value, None where it has none
    source: str  # where in the paper it stands
    metric: str = "test"
    matches: int | None = None  # rank of the LDR-SD layer whose budget this one matches
    parameters: int | None = None  # as the paper counts them, where that may differ from our count


@dataclass(frozen=True)
class Table:
    """A table or figure of the paper; `quoted` are numbers of others in it, see `values.LITERATURE`."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    quoted: tuple[tuple[str, str, int, float], ...] = ()

    def runs(self) -> tuple[Run, ...]:
        """Its runs without repetition, in order."""
        return tuple({cell.run.hash: cell.run for cell in self.cells}.values())

    @cached_property
    def quick(self) -> Table:
        """The table by the quick protocol, whose runs are kept apart; what differed in it alone is one."""
        small = self.changed(lambda run: replace(run, protocol=run.protocol.quick()))
        first: dict[str, str] = {}
        pairs = zip(small.cells, self.cells, strict=True)
        cells = (a for a, b in pairs if first.setdefault(a.run.hash, b.run.hash) == b.run.hash)
        return replace(small, cells=tuple(cells))

    def changed(self, change: Callable[[Run], Run]) -> Table:
        """The same table with other runs: another protocol, another start."""
        return replace(self, cells=tuple(replace(cell, run=change(cell.run)) for cell in self.cells))


def paper_run(data: str, model: str, structure: str, rank: int | None = None, **fields: object) -> Run:
    """A run from the paper's start, where nothing else is said."""
    return Run(data, model, structure, rank, **{"init": "paper", **fields})  # type: ignore[arg-type]
