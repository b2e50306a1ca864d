"""Rows on stdout: as JSON, or as a table that a person reads."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..tables.rows import Row

_PAPER_COLUMNS = (
    "dataset", "model", "structure", "rank", "fraction", "init", "parameters", "paper_parameters",
    "test", "deviation", "paper", "difference", "data", "seconds", "seeds", "lr", "diverged", "source",
)  # fmt: skip
_ONLY_IF_VARIED = ("model", "fraction", "init")
_ONLY_IF_ANY = ("paper_parameters", "deviation", "difference", "diverged", "hidden")
_TRAIN_COLUMNS = (
    "dataset", "model", "structure", "rank", "hidden", "fraction", "init", "epochs", "parameters",
    "validation", "test", "deviation", "data", "seconds", "seeds", "lr", "diverged",
)  # fmt: skip


def columns_of(rows: Sequence[Row]) -> list[str]:
    """The columns of a paper's table that say something about these rows."""
    from ..tables.rows import tells

    dull = {name for name in _ONLY_IF_VARIED if not tells(name, (row[name] for row in rows))}
    return [name for name in _PAPER_COLUMNS if name not in dull and _says_something(name, rows)]


def train_columns_of(rows: Sequence[Row]) -> list[str]:
    """The columns for runs of one's own."""
    return [name for name in _TRAIN_COLUMNS if _says_something(name, rows)]


def _says_something(name: str, rows: Sequence[Row]) -> bool:
    return name not in _ONLY_IF_ANY or any(row[name] for row in rows)


def show_rows(
    rows: Sequence[Row], as_json: bool, *, title: str | None = None, columns: Sequence[str] | None = None
) -> None:
    """Print rows to stdout."""
    if as_json:
        print(json.dumps(list(rows), indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    from ..tables.rows import heading

    names = list(columns or (rows[0] if rows else ()))
    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    for name in names:
        numeric = all(row[name] is None or isinstance(row[name], int | float) for row in rows)
        shown = heading(rows) if name == "test" else name
        table.add_column(shown, justify="right" if numeric else "left", no_wrap=numeric)
    for row in rows:
        table.add_row(*(_cell(name, row[name]) for name in names))
    # A pipe has no width of its own: leave the cutting to what reads it.
    Console(width=None if sys.stdout.isatty() else 200, markup=False, highlight=False).print(table)


def _cell(name: str, value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float() if name == "fraction":
            return f"{value:.0%}"
        case float() if name == "seconds":
            return f"{value:,.1f}"
        case float() if name == "difference":
            return f"{value:+.2f}"
        case float():
            return f"{value:.2f}"
        case list():
            return ", ".join("-" if item is None else f"{item:g}" for item in value) or "-"
    return str(value)
