"""Progress on stderr: one line that is written over, or plain lines where stderr is no terminal.

with reporting(True) as report:
    report("projecting", 3, 40)     # projecting 3/40, 0:12, about 2:28 left
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Line", "Report", "minutes", "reporting", "silent"]

Report = Callable[[str, int, Any], None]
"""Called with a stage, how many of its steps are done, and how many there are (None where nobody knows)."""

_EVERY = 0.2  # seconds between two writings of the line
_PLAIN_EVERY = 5.0  # and between two plain lines


def silent(stage: str, done: int, total: int | None) -> None:
    """Report nothing."""


def minutes(seconds: float) -> str:
    """Minutes and seconds.

    >>> minutes(75.2)
    '1:15'
    """
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Line:
    """The last line of stderr, written over where that is a terminal.

    Attributes:
        terminal: whether it is one.
    """

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self._text = ""

    def show(self, text: str) -> None:
        """Write a text over the one before; nothing where stderr is no terminal."""
        if self.terminal and (text or self._text):
            text = text[: shutil.get_terminal_size().columns - 1]
            sys.stderr.write("\r" + text.ljust(len(self._text)) + ("" if text else "\r"))
            sys.stderr.flush()
            self._text = text

    def say(self, text: str) -> None:
        """Print a text that stays, above the line."""
        shown = self._text
        self.show("")
        print(text, file=sys.stderr, flush=True)
        self.show(shown)

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.show("")


@contextmanager
def reporting(
    choice: bool | Report | None,
    *,
    count: Callable[[int, int | None], str] | None = None,
    left: Callable[[str, int, int | None], float | None] | None = None,
) -> Iterator[Report]:
    """The callback for a choice of progress.

    Args:
        choice: a function is itself; True writes to stderr; None does on a terminal; False is quiet.
        count: how to write the steps that are done and those in all.
        left: seconds that are left, or None; else by how long the stage took so far.
    """
    if callable(choice):
        yield choice
    elif choice is False or (choice is None and not sys.stderr.isatty()):
        yield silent
    else:
        with Line() as line:
            yield _Stages(line, count or _steps, left)


class _Stages:
    """Stages with their steps, the time so far and the time left, on a line."""

    def __init__(self, line: Line, count: Callable[[int, int | None], str], left: Any) -> None:
        self._line, self._count, self._left = line, count, left or self._left_of_stage
        self._start = self._begun = time.monotonic()
        self._written, self._kind = float("-inf"), ""

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        now, kind = time.monotonic(), stage.partition(" ")[0]
        begins, ends = kind != self._kind, done == total and not self._line.terminal
        if begins:
            self._kind, self._begun = kind, now
        if now - self._written < (_EVERY if self._line.terminal else _PLAIN_EVERY) and not (begins or ends):
            return
        self._written, left = now, self._left(stage, done, total)
        ending = "" if left is None else f", about {minutes(left)} left"
        text = f"{stage}{self._count(done, total)}, {minutes(now - self._start)}{ending}"
        (self._line.show if self._line.terminal else self._line.say)(text)

    def _left_of_stage(self, stage: str, done: int, total: int | None) -> float | None:
        return (time.monotonic() - self._begun) * (total - done) / done if total and done else None


def _steps(done: int, total: int | None) -> str:
    return f" {done}/{total}" if total else f" {done}" if done else ""
