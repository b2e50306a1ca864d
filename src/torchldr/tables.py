"""Tables that fit a width: prose moves below its row, long names above it, then the last columns go.

No cell is cut. A single row that is too wide is a list of all its columns.
"""

from __future__ import annotations

import itertools
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

UNLIMITED = sys.maxsize
PROSE = 20  # a column whose cells hold spaces and are longer than this may wrap, down to this
GAP, INDENT = "  ", "    "


@dataclass(frozen=True)
class Column:
    """A heading, a cell for each row, whether numbers stand to the right, and whether any space may break."""

    heading: str
    cells: tuple[str, ...]
    right: bool = False
    breaks: bool = False

    @property
    def width(self) -> int:
        return max(len(self.heading), *map(len, self.cells), 0)

    @property
    def wraps(self) -> bool:
        return self.breaks or (self.width > PROSE and any(" " in cell for cell in self.cells))

    @property
    def prose(self) -> bool:
        """Whether it may stand below its row: long texts, not short ones or names with a few longer ones."""
        texts = [cell for cell in self.cells if " " in cell]
        enough = 2 * len(texts) > len(self.cells) and sum(map(len, texts)) > PROSE * len(texts)
        return self.wraps and not self.breaks and enough

    @property
    def least(self) -> int:
        """The width below which a word would be cut."""
        if not self.wraps:
            return self.width
        words = (len(word) for cell in self.cells for word in cell.split())
        return max(0 if self.breaks else PROSE, len(self.heading), *words)


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
    above, room = None, width
    if _total(column.least for column in shown) > width and len(shown) > 1 and 3 * shown[0].width > width:
        above, room = shown.pop(0), width - len(INDENT)
    left_out = list[str]()
    while _total(column.least for column in shown) > room and len(shown) > 1:
        left_out.insert(0, shown.pop().heading)
    return list(_lines(above, shown, sorted(below, key=columns.index), room)), left_out


def table_text(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    right: Sequence[str] = (),
    breaks: Sequence[str] = (),
) -> list[str]:
    """The lines of a table of rows; the last line names columns that did not fit."""
    cells = zip(*rows, strict=True) if rows else [()] * len(heads)
    columns = [Column(h, tuple(c), h in right, h in breaks) for h, c in zip(heads, cells, strict=True)]
    lines, left_out = table_lines(columns, width)
    return [*lines, *([f"no room for: {', '.join(left_out)}"] if left_out else [])]


def wrapped(text: str, width: int) -> list[str]:
    """A text as lines of this width at most, but for longer words; the first stands out."""
    return textwrap.wrap(text, width, subsequent_indent=GAP, break_long_words=False, break_on_hyphens=False)


def _total(widths: Iterable[int]) -> int:
    found = [*widths]
    return sum(found) + len(GAP) * (len(found) - 1)


def _lines(
    above: Column | None, shown: Sequence[Column], below: Sequence[Column], width: int
) -> Iterator[str]:
    widths, indent = _widths(shown, width), INDENT if above else ""
    heads = [replace(column, cells=(column.heading,)) for column in shown]
    if above:
        yield above.heading
    for line in (*_row(heads, widths, 0), GAP.join("-" * size for size in widths)):
        yield indent + line
    for i in range(len(shown[0].cells)):
        if above:
            yield above.cells[i]
        for line in _row(shown, widths, i):
            yield indent + line
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
