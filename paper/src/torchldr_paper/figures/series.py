"""What the ledger holds for a table, ready to be drawn: by dataset and method, seeds put together."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from torchldr.pictures import NothingToDrawError

from ..ledger.ledger import Ledger
from ..ledger.records import Record
from ..tables.cells import Table
from ..tables.rows import Row, table_rows
from .names import source_title


def finished(table: Table, ledger: Ledger) -> tuple[list[Row], bool]:
    """The finished rows of a table, each with its "records", one a seed; and whether they are quick ones.

    Those count where no others are.

    Raises:
        NothingToDrawError: where nothing of it was run; the message says what to run.
    """
    # The latest, as in the tables, where data of one source changed.
    known = {(record.hash, record.source): record for record in ledger}
    for quick in (False, True):
        found = [
            {**row, "records": [known[key, row["data"]] for key in row["hashes"]]}
            for row in table_rows(table.quick if quick else table, ledger)
            if row["hashes"] and row["test"] is not None
        ]
        if found:
            return found, quick
    raise NothingToDrawError(f"the ledger has no run of it; run: torchldr paper {table.name}")


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


def by(rows: Sequence[Row], key: str) -> dict[str, list[Row]]:
    """Rows grouped by one of their fields, in order of appearance."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(str(row[key]), []).append(row)
    return groups


def about(rows: Sequence[Row], quick: bool) -> str:
    """Where a panel's numbers come from, for its title: the data's source, and the protocol if quick."""
    sources = ", ".join(dict.fromkeys(source_title(row["data"]) for row in rows))
    return f"{sources}, quick" if quick else sources
