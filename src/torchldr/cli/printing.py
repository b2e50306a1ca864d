"""What commands print: results to stdout, messages to stderr."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..json_text import json_text
from ..progress import Report, silent
from ..tables import Column, table_lines, wrapped


def say(message: str) -> None:
    """A message to the user: stderr, so that stdout holds results alone."""
    print(message, file=sys.stderr, flush=True)


@contextmanager
def bar() -> Iterator[Report]:
    """A callback for `progress=` that shows a bar on stderr, on a terminal; elsewhere it shows nothing."""
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield silent
        return
    columns = progress.TextColumn("{task.description}", markup=False), progress.BarColumn()
    counts = progress.MofNCompleteColumn(), progress.TimeElapsedColumn(), progress.TimeRemainingColumn()
    with progress.Progress(*columns, *counts, console=console, transient=True) as shown:
        task, kind = shown.add_task("", total=None), ""

        def report(stage: str, done: int, total: int | None) -> None:
            nonlocal kind
            if kind != (kind := stage.partition(" ")[0]):
                shown.reset(task)
            shown.update(task, description=stage, completed=done, total=total)

        yield report


def width() -> int:
    """How many characters a line may have. A pipe has no width: its reader may wrap lines."""
    return shutil.get_terminal_size((200, 24)).columns


def show(
    result: Any,
    as_json: bool,
    *,
    title: str | None = None,
    columns: Sequence[str] | None = None,
    right: Sequence[str] = (),
    headings: Mapping[str, str] | None = None,
    cell: Callable[[str, Any], str | None] = lambda name, value: None,
) -> None:
    """Print a result to stdout: as JSON, or rows (a list of mappings) as a table.

    Args:
        result: what JSON can hold; without `as_json` a list of mappings with the same keys.
        as_json: whether to print JSON.
        title: of the table.
        columns: the keys to show and their order; all by default.
        right: columns that stand to the right, besides those of numbers.
        headings: of columns that are not called as their keys are.
        cell: from a key and a value to what is printed, or None to print it as usual.
    """
    if as_json:
        print(json_text(result, default=str))
        return
    rows: Sequence[Mapping[str, Any]] = result
    shown = []
    for name in columns or (rows[0] if rows else ()):
        values = [row[name] for row in rows]
        cells = tuple(cell(name, value) or _cell(value) for value in values)
        heading = (headings or {}).get(name, name.replace("_", " "))
        shown.append(Column(heading, cells, name in right or all(map(_is_number, values))))
    lines, left_out = table_lines(shown, width()) if shown else ([], [])
    print(*([title] if title else []), *lines, sep="\n")
    if left_out:
        said = f"left out, the terminal is too narrow: {', '.join(left_out)}; --json has all"
        say("\n".join(wrapped(said, width())))


def _is_number(value: Any) -> bool:
    """Or nothing, which a column of numbers may hold too."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if 999.5 <= abs(value) < 1e15 else f"{value:.3g}"
        case Mapping():
            return ", ".join(f"{key}={item}" for key, item in value.items())
        case list() | tuple():
            return " x ".join(str(item) for item in value)
    return str(value)
