"""Tables of the page: every row with what it is filtered by, every cell with what it is sorted by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..figures.names import dataset_title, method_title, model_title
from ..tables.rows import Row, tells
from .markup import Html, element, join, text
from .runs import row_link

ABSENT = "\N{EN DASH}"
NEAR = 1.0  # points below the paper that count as near it
SOURCES = {"official": "official", "stand-in": "stand-in", "user": "own", "literature": "quoted"}


@dataclass(frozen=True)
class Column:
    """A column: its key in a row, its heading, how a value is shown, and when.

    Attributes:
        minor: left out on a narrow screen.
        needed: given the values of all rows but quoted ones, whether to show it at all.
    """

    key: str
    heading: str
    show: Callable[[Row], Html]
    numeric: bool = False
    minor: bool = False
    needed: Callable[[list[Any]], bool] = lambda values: True


def _varied(values: list[Any]) -> bool:
    return len(set(values)) > 1


def _given(values: list[Any]) -> bool:
    return any(value is not None and value != 0 for value in values)


def _plain(key: str, form: Callable[[Any], str] = str) -> Callable[[Row], Html]:
    return lambda row: text(ABSENT if row[key] is None else form(row[key]))


def _ours(row: Row) -> Html:
    if row["test"] is None:
        words = {"quoted": ABSENT, "missing": "not run"}.get(row["state"], "diverged")
        number = text(words)
    else:
        number = text(f"{row['test']:.2f}")
    if row["deviation"] is not None:
        number = join([number, element("small", text(f" ± {row['deviation']:.2f}"))], "")
    link = row_link(row)
    if link is None:
        return element("span", number, class_="absent")
    count = len(row["hashes"])
    return element("a", number, href=link, title=f"its {'run' if count == 1 else f'{count} runs'}")


def _difference(row: Row) -> Html:
    value = row["difference"]
    if value is None:
        return text(ABSENT)
    # The sign says it too: colour is not needed to read it.
    better = -value if row["metric"] == "perplexity" else value
    level = "above" if better >= 0 else "near" if better >= -NEAR else "below"
    kind = level if row["metric"] != "generalization" else "plain"
    return element("span", text(f"{value:+.2f}".replace("-", "\N{MINUS SIGN}")), class_=f"difference {kind}")


def _source(row: Row) -> Html:
    source = row["data"]
    if source is None:
        return text(ABSENT)
    return element("span", text(SOURCES.get(source, source)), class_=f"badge {source}")


def _rates(row: Row) -> Html:
    """The chosen learning rate of each seed, once where all agree."""
    rates = [ABSENT if rate is None else f"{rate:g}" for rate in row["lr"]]
    return text(", ".join(rates[:1] if len(set(rates)) == 1 else rates) or ABSENT)


COLUMNS = (
    Column("structure", "Method", lambda row: text(method_title(row["structure"]))),
    Column("rank", "Rank", _plain("rank"), numeric=True, needed=_given),
    Column("dataset", "Dataset", lambda row: text(dataset_title(row["dataset"])), minor=True),
    Column("model", "Network", lambda row: text(model_title(row["model"])), minor=True, needed=_varied),
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


def table_html(rows: Sequence[Row], caption: str) -> Html:
    """A table in a frame that scrolls sideways where it is too wide.

    Args:
        rows: of `torchldr_paper.tables.rows`, at least one.
        caption: what a reader who does not see the heading is told.
    """
    ours = [row for row in rows if row["state"] != "quoted"]
    columns = [column for column in COLUMNS if column.needed([row[column.key] for row in ours])]
    heads = join([_head(column) for column in columns], "")
    body = join([_row(row, columns) for row in rows])
    table = element(
        "table",
        element("caption", text(caption), class_="unseen"),
        element("thead", element("tr", heads)),
        element("tbody", body),
    )
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _head(column: Column) -> Html:
    button = element("button", text(column.heading), type="button")
    return element("th", button, scope="col", class_=_classes(column), aria_sort="none")


def _row(row: Row, columns: Sequence[Column]) -> Html:
    cells = []
    for column in columns:
        tag = "th" if column.key == "structure" else "td"
        cells.append(
            element(
                tag,
                join([column.show(row), _where(row, columns)], "") if tag == "th" else column.show(row),
                scope="row" if tag == "th" else None,
                class_=_classes(column),
                data_value=_sort_value(row, column),
                data_text=method_title(row["structure"]) if tag == "th" else None,
            )
        )
    filters = {"data_dataset": row["dataset"], "data_model": row["model"], "data_state": row["state"]}
    return element("tr", join(cells, ""), **filters)


def _where(row: Row, columns: Sequence[Column]) -> Html:
    """The dataset and network below a method's name, for a screen that has no room for their columns."""
    varied = any(column.key == "model" for column in columns)
    words = [dataset_title(row["dataset"]), *([model_title(row["model"])] if varied else [])]
    return element("small", text(", ".join(words)), class_="where")


def _sort_value(row: Row, column: Column) -> str | None:
    """What a cell is sorted by, where that is not its text."""
    value = row[column.key]
    if isinstance(value, list):
        value = value[0] if value else None
    if value is None:
        return "" if column.numeric else None
    return str(value) if column.numeric else None


def _classes(column: Column) -> str | None:
    names = [*(["number"] if column.numeric else []), *(["minor"] if column.minor else [])]
    return " ".join(names) or None
