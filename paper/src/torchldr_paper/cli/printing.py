"""Rows on stdout: as JSON, or as a table that a person reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchldr.cli import show

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
    from ..tables.rows import heading

    named = list(columns or (rows[0] if rows else ()))
    headings = {name: heading(rows) if name == "test" else name for name in named}
    show(list(rows), as_json, title=title, columns=named, headings=headings, cell=_cell)


def _cell(name: str, value: Any) -> str | None:
    match value:
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
    return None
