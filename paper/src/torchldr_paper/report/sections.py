"""What the page shows of the ledger: the paper's tables, their quick versions, all other runs, by columns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from markupsafe import Markup

from ..figures.names import dataset_title, method_title, model_title
from ..ledger.ledger import Ledger
from ..tables.cells import Table
from ..tables.paper import TABLES
from ..tables.rows import Row, run_rows, table_rows, tells

ABSENT = "\N{EN DASH}"
NEAR = 1.0  # points below the paper that count as near it
SOURCES = {"official": "official", "stand-in": "stand-in", "user": "own", "literature": "quoted"}


@dataclass(frozen=True)
class Column:
    """A column: its key in a row, its heading, how a row's value is shown, and when.

    Attributes:
        minor: left out on a narrow screen.
        needed: given the values of all rows but quoted ones, whether to show it at all.
    """

    key: str
    heading: str
    show: Callable[[Row], str]
    numeric: bool = False
    minor: bool = False
    needed: Callable[[list[Any]], bool] = lambda values: True

    @property
    def classes(self) -> str:
        return " ".join(["number"] * self.numeric + ["minor"] * self.minor)

    def sort_value(self, row: Row) -> str:
        """What a number is sorted by; of several the first."""
        value = row[self.key]
        first = next(iter(value), None) if isinstance(value, list) else value
        return "" if first is None else str(first)


def columns_of(rows: Sequence[Row]) -> list[Column]:
    """The columns that say something about these rows."""
    ours = [row for row in rows if row["state"] != "quoted"]
    return [column for column in COLUMNS if column.needed([row[column.key] for row in ours])]


def _varied(values: list[Any]) -> bool:
    return len(set(values)) > 1


def _given(values: list[Any]) -> bool:
    return any(value is not None and value != 0 for value in values)


def _plain(key: str, form: Callable[[Any], str] = str) -> Callable[[Row], str]:
    return lambda row: ABSENT if row[key] is None else form(row[key])


def _ours(row: Row) -> Markup:
    """Our number, which leads to its runs."""
    words = {"quoted": ABSENT, "missing": "not run"}.get(row["state"], "diverged")
    number = Markup("{}").format(words if row["test"] is None else f"{row['test']:.2f}")
    if row["deviation"] is not None:
        number += Markup("<small> ± {:.2f}</small>").format(row["deviation"])
    count = len(row["hashes"])
    if not count:
        return Markup('<span class="absent">{}</span>').format(number)
    link = f"#runs/{'/'.join([row['data'], *row['hashes']])}"
    title = f"its {'run' if count == 1 else f'{count} runs'}"
    return Markup('<a href="{}" title="{}">{}</a>').format(link, title, number)


def _difference(row: Row) -> str:
    value = row["difference"]
    if value is None:
        return ABSENT
    # The sign says it too: colour is not needed to read it.
    better = -value if row["metric"] == "perplexity" else value
    level = "above" if better >= 0 else "near" if better >= -NEAR else "below"
    kind = level if row["metric"] != "generalization" else "plain"
    text = f"{value:+.2f}".replace("-", "\N{MINUS SIGN}")
    return Markup('<span class="difference {}">{}</span>').format(kind, text)


def _source(row: Row) -> str:
    source = row["data"]
    if source is None:
        return ABSENT
    return Markup('<span class="badge {}">{}</span>').format(source, SOURCES.get(source, source))


def _rates(row: Row) -> str:
    """The chosen learning rate of each seed, once where all agree."""
    rates = [ABSENT if rate is None else f"{rate:g}" for rate in row["lr"]]
    return ", ".join(rates[:1] if len(set(rates)) == 1 else rates) or ABSENT


COLUMNS = (
    Column("structure", "Method", lambda row: method_title(row["structure"])),
    Column("rank", "Rank", _plain("rank"), numeric=True, needed=_given),
    Column("dataset", "Dataset", lambda row: dataset_title(row["dataset"]), minor=True),
    Column("model", "Network", lambda row: model_title(row["model"]), minor=True, needed=_varied),
    Column("fraction", "Training data", _plain("fraction", "{:.0%}".format), numeric=True, needed=_varied),
    Column("test", "Ours", _ours, numeric=True),
    Column("paper", "Paper", _plain("paper", "{:.2f}".format), numeric=True, needed=_given),
    Column("difference", "Difference", _difference, numeric=True, needed=_given),
    Column("init", "Start", _plain("init"), needed=lambda values: tells("init", values)),
    Column("hidden", "Hidden units", _plain("hidden"), numeric=True, minor=True, needed=_given),
    Column("epochs", "Epochs", _plain("epochs"), numeric=True, minor=True, needed=_varied),
    Column("parameters", "Parameters", _plain("parameters", "{:,}".format), numeric=True),
    Column(
        "paper_parameters",
        "Parameters in the paper",
        _plain("paper_parameters", "{:,}".format),
        numeric=True,
        minor=True,
        needed=_given,
    ),
    Column("data", "Data", _source),
    Column("lr", "Rate", _rates, numeric=True, minor=True),
    Column("seeds", "Seeds", _plain("seeds"), numeric=True, minor=True),
    Column("diverged", "Diverged", _plain("diverged"), numeric=True, minor=True, needed=_given),
    Column("seconds", "Seconds", _plain("seconds", "{:,.1f}".format), numeric=True, minor=True),
    Column("source", "In the paper", _plain("source"), minor=True, needed=_varied),
)


METRICS = {
    "mean": "Test accuracy in percent, the mean over the trials of the chosen learning rate, each at its "
    "best epoch of validation; ± is over trials, or over seeds where there are several.",
    "generalization": "Training less test accuracy, in points: less is better.",
    "perplexity": "Test perplexity at the epoch of the best validation: less is better.",
}
HEADLINE = ("rectangles", "shl", "cnn")
QUICK = "The quick protocol, with fewer epochs, rates, trials and images: not comparable with the paper."


@dataclass(frozen=True)
class Section:
    """A table of the page.

    Attributes:
        id: its anchor.
        title: its heading.
        rows: see `torchldr_paper.tables.rows`.
        notes: sentences above the table.
        command: what runs it; empty where nothing does.
    """

    id: str
    title: str
    rows: Sequence[Row]
    notes: Sequence[str]
    command: str = ""

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
        return columns_of(self.rows)

    def where(self, row: Row) -> str:
        """The dataset and network below a method's name, for a screen that has no room for their columns."""
        varied = any(column.key == "model" for column in self.columns)
        return ", ".join([dataset_title(row["dataset"]), *([model_title(row["model"])] if varied else [])])


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
    """What the ledger holds, in a few numbers; nothing where it is empty."""
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
