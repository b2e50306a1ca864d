"""What the ledger holds for a table, ready to be drawn: by dataset and method, seeds put together."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchldr.pictures import NothingToDrawError

from ..ledger.ledger import Ledger
from ..ledger.records import Record
from ..tables.cells import Table
from ..tables.rows import Row, table_rows
from .names import source_title


@dataclass(frozen=True)
class Point:
    """One number of a table.

    Attributes:
        row: of the table.
        value: ours, the mean over seeds.
        deviation: of a single trial, see `spread`.
    """

    row: Row
    value: float
    deviation: float


def points(table: Table, ledger: Ledger) -> tuple[list[Point], bool]:
    """The finished cells of a table, and whether they are quick ones: those count where no others are.

    Raises:
        NothingToDrawError: where nothing of it was run; the message says what to run.
    """
    known = index(ledger)
    for quick in (False, True):
        rows = table_rows(table.quick if quick else table, ledger)
        done = [row for row in rows if row["hashes"] and row["test"] is not None]
        if done:
            found = [Point(row, row["test"], spread(records_of(row, known))) for row in done]
            return found, quick
    raise NothingToDrawError(f"the ledger has no run of it; run: torchldr paper {table.name}")


def index(ledger: Ledger) -> dict[tuple[str, str], Record]:
    """Records by hash and source; the latest, as in the tables, where data of one source changed."""
    return {(record.hash, record.source): record for record in ledger}


def records_of(row: Row, known: Mapping[tuple[str, str], Record]) -> list[Record]:
    """The records that a row of a table was computed from, one a seed."""
    return [known[key, row["data"]] for key in row["hashes"]]


def spread(records: Sequence[Record]) -> float:
    """Deviation of the test accuracy of a trial, within seeds and between them.

    Variances add: the mean of the seeds' variances over trials, and the variance of their means.
    """
    means = [record.mean for record in records if record.mean is not None]
    if not means:
        return 0.0
    within = statistics.fmean(mean.deviation**2 for mean in means)
    between = statistics.pvariance([mean.test for mean in means])
    return float((within + between) ** 0.5)


def by(found: Sequence[Point], key: str) -> dict[str, list[Point]]:
    """Points grouped by a field of their rows, in order of appearance."""
    groups: dict[str, list[Point]] = {}
    for point in found:
        groups.setdefault(str(point.row[key]), []).append(point)
    return groups


def about(group: Sequence[Point], quick: bool) -> str:
    """Where a panel's numbers come from, for its title: the data's source, and the protocol if quick."""
    sources = ", ".join(dict.fromkeys(source_title(point.row["data"]) for point in group))
    return f"{sources}, quick" if quick else sources
