"""The cases of a benchmark: structured classes x n x rank x batch, inference and training step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torchldr.matrices import get_structure

from .paper_values import SIZES, in_paper

INFERENCE, TRAINING = "inference", "training"
KINDS = (INFERENCE, TRAINING)


class Case(NamedTuple):
    """One thing to time: an n x n layer. `rank` is None for a class without one."""

    what: str
    structure: str
    n: int
    rank: int | None
    batch: int

    def __str__(self) -> str:
        rank = "" if self.rank is None else f" rank {self.rank}"
        return f"{self.what} {self.structure} n = {self.n}{rank} batch {self.batch}"


class Grid(NamedTuple):
    """Which cases, and how long each is timed: at least `repeats` rounds, about `seconds` a side."""

    structures: Sequence[str] = tuple(in_paper())
    sizes: Sequence[int] = SIZES
    ranks: Sequence[int] = (1,)
    batches: Sequence[int] = (1, 50)
    what: Sequence[str] = KINDS
    repeats: int = 20
    seconds: float = 0.2
    deadline: float | None = None  # seconds after which no further case is begun

    def cases(self) -> Iterator[Case]:
        """All cases, smallest first; a rank that a class or a size cannot have is left out.

        A training step is timed for batches above 1: one vector says little about training.
        """
        for n in sorted(set(self.sizes)):
            for what in self.what:
                for batch in self.batches:
                    if what == TRAINING and batch == 1 and len(self.batches) > 1:
                        continue
                    for structure in self.structures:
                        ranked = get_structure(structure).ranked
                        for rank in self.ranks if ranked else (None,):
                            if rank is None or rank <= n:
                                yield Case(what, structure, n, rank, batch)


# Ends within a minute: the deadline leaves time for the case in progress.
QUICK = Grid(sizes=(256, *SIZES[:4]), repeats=5, seconds=0.05, deadline=40.0)
