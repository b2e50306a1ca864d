"""Columns of numbers of a CSV file, as people's spreadsheets and programs write them."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING

from .options import wrong_use

if TYPE_CHECKING:
    import numpy as np

MISSING = {"", "na", "n/a", "nan", "null", "none"}


def read_columns(file: Path, columns: list[str] | None, *, gaps: bool) -> tuple[list[str], np.ndarray]:
    """The names and the values (time, columns) of those that are numbers; missing ones are NaN.

    Commas, semicolons or tabs separate cells; beside semicolons, numbers may have decimal commas. By default
    a column without a name, such as the index that pandas writes, is left out.

    Raises:
        typer.BadParameter: for files that are no such table, columns that are missing or hold more than
            numbers, infinite values and, unless `gaps`, missing ones.
    """
    import numpy as np

    from ..core.registry import near

    with wrong_use("FILE"):
        header, body = _cells(file)
    found = {name: [_number(cells[k]) for _, cells in body] for k, name in enumerate(header)}
    numbers = {
        name: np.array(column, dtype=np.float64) for name, column in found.items() if None not in column
    }
    with wrong_use("--columns" if columns else "FILE"):
        wanted = columns or [name for name in numbers if name.strip()]
        for name in wanted:
            if name not in found:
                raise ValueError(f"{file} has no column {name!r}{near(name, dict.fromkeys(header))}.")
            if name not in numbers:
                line, cells = body[found[name].index(None)]
                cell = cells[header.index(name)]
                raise ValueError(f"column {name!r} of {file} holds more than numbers: {cell!r}, line {line}.")
        if not wanted:
            raise ValueError(f"{file} has no column of numbers.")
    with wrong_use("FILE"):
        for name in wanted:
            if np.isinf(numbers[name]).any():
                line = body[int(np.isinf(numbers[name]).argmax())][0]
                raise ValueError(f"column {name!r} of {file} is infinite in line {line}.")
            if not gaps and np.isnan(numbers[name]).any():
                line = body[int(np.isnan(numbers[name]).argmax())][0]
                raise ValueError(
                    f"column {name!r} of {file} has no value in line {line}: fill it, or take --gaps split."
                )
    return wanted, np.stack([numbers[name] for name in wanted], 1)


def _cells(file: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The names, and the number and the cells of each line that is not empty."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            text = stream.read()
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not text in UTF-8.") from None
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    body = [(reader.line_num, line) for line in reader if line]
    if len(body) < 2:
        raise ValueError(f"{file} has no values: expected a line of names, then a line for each time.")
    header = body.pop(0)[1]
    if all(_number(name) is not None for name in header) and not all(name.isdigit() for name in header):
        raise ValueError(f"{file}: the first line must hold the names of the columns, got numbers.")
    for name in header:
        if name.strip() and header.count(name) > 1:
            raise ValueError(f"{file} has {header.count(name)} columns {name!r}.")
    for number, line in body:
        if len(line) != len(header):
            raise ValueError(f"{file}: line {number} has {len(line)} cells, the first {len(header)}.")
    if delimiter == ";":
        body = [(number, [cell.replace(",", ".") for cell in line]) for number, line in body]
    return header, body


def _number(cell: str) -> float | None:
    """NaN for a missing value, None for what is no number."""
    if cell.strip().lower() in MISSING:
        return float("nan")
    try:
        return float(cell)
    except ValueError:
        return None
