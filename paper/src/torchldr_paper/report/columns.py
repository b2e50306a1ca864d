"""The columns of the page's tables: what stands in a cell, what it is sorted by, and when it is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from ..figures.names import dataset_title, method_title, model_title
from ..tables.rows import Row, tells

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
