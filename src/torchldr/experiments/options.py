"""Arguments of the commands: options with several values, filters of a table, options of a class."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from typer.core import TyperCommand

from .paper_cells import Cell, Table

Filters = dict[str, set[str]]

_FILTERS: dict[str, Callable[[Cell], Any]] = {
    "dataset": lambda cell: cell.run.data,
    "model": lambda cell: cell.run.model,
    "structure": lambda cell: cell.run.method,
    "rank": lambda cell: cell.run.rank if cell.matches is None else cell.matches,
    "fraction": lambda cell: cell.run.train_fraction,
}


class Many(TyperCommand):
    """A command whose options take several values in a row: `--rank 1 16` is `--rank 1 --rank 16`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        several = {
            name
            for parameter in self.params
            if getattr(parameter, "multiple", False)
            for name in parameter.opts
        }
        return super().parse_args(ctx, spread(args, several))


def spread(arguments: Sequence[str], several: set[str]) -> list[str]:
    """Repeat the name of an option before each further value.

    >>> spread(["x", "--rank", "1", "16", "--quick"], {"--rank"})
    ['x', '--rank', '1', '--rank', '16', '--quick']
    """
    result: list[str] = []
    current, values = "", 0
    for argument in arguments:
        if argument[:1] == "-" and argument[1:2].strip(".0123456789"):  # -o, --out; neither -1 nor -
            name = argument.split("=", 1)[0]
            current = name if name in several else ""
            values = 1 if "=" in argument and current else 0
        elif current:
            if values:
                result.append(current)
            values += 1
        result.append(argument)
    return result


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
