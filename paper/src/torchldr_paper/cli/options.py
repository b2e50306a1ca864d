"""Arguments of the commands: folders, filters of a table, options of a class."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..tables.cells import Cell, Table

PANEL = "The paper (torchldr-paper)"  # where `torchldr --help` lists the commands
HERE = "here"  # what --ray alone means
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="A data folder; else $TORCHLDR_DATA, else the user's cache.")
]
Results = Annotated[
    Path | None, typer.Option("--results", help="The ledger's folder; else results/ of the checkout or here.")
]
Filters = dict[str, set[str]]

_FILTERS: dict[str, Callable[[Cell], Any]] = {
    "dataset": lambda cell: cell.run.data,
    "model": lambda cell: cell.run.model,
    "structure": lambda cell: cell.run.method,
    "rank": lambda cell: cell.run.rank if cell.matches is None else cell.matches,
    "fraction": lambda cell: cell.run.train_fraction,
}


def parse_filters(texts: Sequence[str]) -> Filters:
    """Filters from `key=value,value`.

    Raises:
        ValueError: for another form or an unknown key.
    """
    filters: Filters = {}
    for text in texts:
        key, mark, wanted = text.partition("=")
        if not mark or key not in _FILTERS:
            raise ValueError(f"--only takes key=value with a key of {', '.join(_FILTERS)}, got {text!r}.")
        filters.setdefault(key, set()).update(_written(key, value) for value in wanted.split(","))
    return filters


def keep_table(table: Table, filters: Filters) -> Table:
    """The cells of a table that pass all filters.

    Raises:
        ValueError: when none does, or none has one of the values, with the values that there are.
    """
    if not filters:
        return table
    cells = tuple(
        cell
        for cell in table.cells
        if all(_text(_FILTERS[key](cell)) in wanted for key, wanted in filters.items())
    )
    known = {key: [_text(v) for v in _in_order({_FILTERS[key](c) for c in table.cells})] for key in filters}
    strange = [f"{key}={v}" for key, wanted in filters.items() for v in sorted(wanted - {*known[key]})]
    if strange or not cells:
        listing = "; ".join(f"{key}: {', '.join(found)}" for key, found in known.items())
        asked = ", ".join(strange) or "what --only asks for"
        raise ValueError(f"no row of {table.name!r} has {asked}. There are {listing}.")
    return replace(table, cells=cells, quoted=())


def parse_options(texts: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    """A class's options from `name=value`; values are JSON where they can be, else text.

    >>> parse_options(["block_size=8", "product=split"])
    (('block_size', 8), ('product', 'split'))
    """
    pairs = []
    for text in texts:
        name, mark, value = text.partition("=")
        if not mark or not name:
            raise ValueError(f"--option takes name=value, got {text!r}.")
        try:
            pairs.append((name, json.loads(value.lower() if value in ("True", "False") else value)))
        except (ValueError, RecursionError):
            pairs.append((name, value))
    return tuple(pairs)


def _written(key: str, value: str) -> str:
    """A value as tables print it, in the form of `_text`: 50% is 0.5, None is -."""
    if key == "fraction":
        with contextlib.suppress(ValueError):
            return _text(float(value.removesuffix("%")) / (100 if value.endswith("%") else 1))
    return "-" if value == "None" else value


def _in_order(values: set[Any]) -> list[Any]:
    return sorted(values, key=lambda value: (value is not None, value))


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
