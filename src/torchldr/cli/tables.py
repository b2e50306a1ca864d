"""Tables that fit a width: prose wraps or moves below its row, then the last columns go; no cell is cut.

A single row that is too wide is a list of all its columns.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

PROSE = 20  # a column whose cells hold spaces and are longer than this may wrap, down to this
GAP, INDENT = "  ", "    "


@dataclass(frozen=True)
class Column:
    """A heading, a cell for each row, and whether numbers stand to the right."""

    heading: str
    cells: tuple[str, ...]
    right: bool = False

    @property
    def width(self) -> int:
        return max(len(self.heading), *map(len, self.cells), 0)

    @property
    def wraps(self) -> bool:
        return self.width > PROSE and any(" " in cell for cell in self.cells)

    @property
    def prose(self) -> bool:
        """Whether it may stand below its row: text, not names with a few longer ones among them."""
        return self.wraps and 2 * sum(" " in cell for cell in self.cells) > len(self.cells)

    @property
    def least(self) -> int:
        """The width below which a word would be cut."""
        if not self.wraps:
            return self.width
        words = (len(word) for cell in self.cells for word in cell.split())
        return max(PROSE, len(self.heading), *words)


def table_lines(columns: Sequence[Column], width: int) -> tuple[list[str], list[str]]:
    """The lines of a table, and the headings of columns for which there was no room.

    Args:
        columns: the most important first; the first one always stays.
        width: how many characters a line may have.
    """
    if len(columns[0].cells) == 1 and _total(column.width for column in columns) > width:
        size = max(len(column.heading) for column in columns)
        return [f"{column.heading:<{size}}{GAP}{column.cells[0]}".rstrip() for column in columns], []
    shown, below = [*columns], list[Column]()
    while _total(column.least for column in shown) > width and (prose := [c for c in shown[1:] if c.prose]):
        below.append(max(prose, key=lambda column: column.width))
        shown.remove(below[-1])
    left_out = list[str]()
    while _total(column.least for column in shown) > width and len(shown) > 1:
        left_out.insert(0, shown.pop().heading)
    return list(_lines(shown, sorted(below, key=columns.index), width)), left_out


def _total(widths: Iterable[int]) -> int:
    found = [*widths]
    return sum(found) + len(GAP) * (len(found) - 1)


def _lines(shown: Sequence[Column], below: Sequence[Column], width: int) -> Iterator[str]:
    widths = _widths(shown, width)
    heads = [replace(column, cells=(column.heading,)) for column in shown]
    yield from _row(heads, widths, 0)
    yield GAP.join("-" * size for size in widths)
    for i in range(len(shown[0].cells)):
        yield from _row(shown, widths, i)
        for column in below:
            text = column.cells[i]
            yield from textwrap.wrap(text, width, initial_indent=INDENT, subsequent_indent=INDENT)


def _widths(shown: Sequence[Column], width: int) -> list[int]:
    """What each column gets: those that wrap take what is left."""
    widths = [column.least for column in shown]
    left = width - _total(widths)
    for i, column in enumerate(shown):
        more = min(left, column.width - widths[i]) if column.wraps else 0
        widths[i] += max(more, 0)
        left -= max(more, 0)
    return widths


def _row(columns: Sequence[Column], widths: Sequence[int], i: int) -> Iterator[str]:
    parts = [
        textwrap.wrap(column.cells[i], size, break_on_hyphens=False) or [""]
        for column, size in zip(columns, widths, strict=True)
    ]
    for line in itertools.zip_longest(*parts, fillvalue=""):
        cells = (
            cell.rjust(size) if column.right else cell.ljust(size)
            for column, cell, size in zip(columns, line, widths, strict=True)
        )
        yield GAP.join(cells).rstrip()
