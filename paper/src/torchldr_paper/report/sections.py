"""What the page shows of the ledger: the paper's tables, their quick versions, all other runs, by columns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..figures.names import dataset_title, method_title, model_title
from ..ledger.ledger import Ledger
from ..tables.cells import Table
from ..tables.paper import TABLES
from ..tables.rows import Row, run_rows, table_rows, tells

ABSENT = "\N{EN DASH}"


@dataclass(frozen=True)
class Column:
    """A column: its key in a row, its heading, how a value is written (else by the template), and when."""

    key: str
    heading: str
    form: Callable[[Any], str] = str
    numeric: bool = False
    minor: bool = False  # left out on a narrow screen
    # Given the values of all rows but quoted ones, whether to show it at all.
    needed: Callable[[list[Any]], bool] = lambda values: True


def _varied(values: list[Any]) -> bool:
    return len(set(values)) > 1


def _given(values: list[Any]) -> bool:
    return any(value is not None and value != 0 for value in values)


def _rates(rates: list[float | None]) -> str:
    """The chosen learning rate of each seed, once where all agree."""
    texts = [ABSENT if rate is None else f"{rate:g}" for rate in rates]
    return ", ".join(texts[:1] if len(set(texts)) == 1 else texts)


COLUMNS = (
    Column("structure", "Method", method_title),
    Column("rank", "Rank", numeric=True, needed=_given),
    Column("dataset", "Dataset", dataset_title, minor=True),
    Column("model", "Network", model_title, minor=True, needed=_varied),
    Column("fraction", "Training data", "{:.0%}".format, numeric=True, needed=_varied),
    Column("test", "Ours", numeric=True),
    Column("paper", "Paper", "{:.2f}".format, numeric=True, needed=_given),
    Column("difference", "Difference", numeric=True, needed=_given),
    Column("init", "Start", needed=lambda values: tells("init", values)),
    Column("hidden", "Hidden units", numeric=True, minor=True, needed=_given),
    Column("epochs", "Epochs", numeric=True, minor=True, needed=_varied),
    Column("parameters", "Parameters", "{:,}".format, numeric=True),
    Column(
        "paper_parameters", "Parameters in the paper", "{:,}".format, numeric=True, minor=True, needed=_given
    ),
    Column("data", "Data"),
    Column("lr", "Rate", _rates, numeric=True, minor=True),
    Column("seeds", "Seeds", numeric=True, minor=True),
    Column("diverged", "Diverged", numeric=True, minor=True, needed=_given),
    Column("seconds", "Seconds", "{:,.1f}".format, numeric=True, minor=True),
    Column("source", "In the paper", minor=True, needed=_varied),
)


METRICS = {
    "mean": "Test accuracy in percent, the mean over the trials of the chosen learning rate, each at its "
    "epoch with the best validation; ± is over trials, or over seeds if there are several.",
    "generalization": "Training minus test accuracy, in points: less is better.",
    "perplexity": "Test perplexity at the epoch with the best validation: less is better.",
}
HEADLINE = ("rectangles", "shl", "cnn")
QUICK = "The quick protocol, with fewer epochs, rates, trials and images: not comparable with the paper."


@dataclass(frozen=True)
class Section:
    """A table of the page."""

    id: str  # its anchor
    title: str  # its heading
    rows: Sequence[Row]  # see `torchldr_paper.tables.rows`
    notes: Sequence[str]  # sentences above the table
    command: str = ""  # what runs it; empty where nothing does

    @property
    def _cells(self) -> list[Row]:
        return [row for row in self.rows if row["state"] != "quoted"]

    @property
    def _done(self) -> int:
        return sum(row["state"] != "missing" for row in self._cells)

    @property
    def state(self) -> str:
        return "done" if self._done == len(self._cells) else "partial" if self._done else "missing"

    @property
    def progress(self) -> str:
        """How much of it was run, in words."""
        if self.state == "missing":
            return "not run"
        return f"{self._done} of {len(self._cells)} rows" if self.state == "partial" else f"{self._done} rows"

    @cached_property
    def columns(self) -> list[Column]:
        """Those that say something about its rows."""
        return [column for column in COLUMNS if column.needed([row[column.key] for row in self._cells])]


def sections(ledger: Ledger) -> list[Section]:
    """All tables in order: what was run first, within that the paper's order."""
    found = [*_paper(ledger), *_others(ledger)]
    return sorted(found, key=lambda section: section.state == "missing")


def headline(ledger: Ledger) -> Section | None:
    """What most readers want: unstructured and learned layers, run by the paper's protocol."""
    rows = [row for name in HEADLINE for row in table_rows(TABLES[name], ledger)]
    rows = [row for row in rows if row["state"] in ("done", "partial")]
    rows = [row for row in rows if row["structure"] in ("dense", "ldr_sd", "ldr_td")]
    note = "The unstructured layer and the learned classes. All other rows are in the tables below."
    return Section("headline", "At a glance", rows, [note]) if rows else None


def _paper(ledger: Ledger) -> Iterator[Section]:
    for table in TABLES.values():
        command = f"torchldr paper {table.name}"
        yield Section(table.name, table.title, table_rows(table, ledger), _notes(table), command)
        quick = table_rows(table.quick, ledger)
        if any(row["hashes"] for row in quick):
            rows = [row for row in quick if row["state"] != "quoted"]
            title, notes = f"{table.title}, quick", [QUICK, *_notes(table)]
            yield Section(f"{table.name}-quick", title, rows, notes, f"{command} --quick")


def _others(ledger: Ledger) -> Iterator[Section]:
    """Runs that belong to no table: a user's own."""
    of_tables = {
        run.hash for table in TABLES.values() for version in (table, table.quick) for run in version.runs()
    }
    own = [record.run for record in ledger if record.run.seedless not in of_tables]
    if own:
        rows = run_rows(sorted(own, key=lambda run: (run.data, run.model)), ledger)
        yield Section("other-runs", "Other runs", rows, [])


def _notes(table: Table) -> list[str]:
    """Which number it compares, where that is not the test accuracy."""
    return [METRICS[name] for name in dict.fromkeys(cell.metric for cell in table.cells) if name in METRICS]


def facts(ledger: Ledger) -> dict[str, str]:
    """What the ledger holds, in a few numbers; nothing if it is empty."""
    records = list(ledger)
    if not records:
        return {}
    seconds = [float(record.result["seconds"]) for record in records]
    sources = [record.source for record in records]
    return {
        "finished runs": f"{len(records):,}",
        "on official data": f"{sources.count('official'):,}",
        "on stand-ins": f"{sources.count('stand-in'):,}",
        "training time": _duration(sum(seconds)),
        "median run": _duration(statistics.median(seconds)),
        "last finished": max(record.time for record in records)[:10],
    }


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
