"""Progress on stderr, with the time left: rich's bars where it is installed, else plain lines."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Protocol


class Progress(Protocol):
    """What training reports to."""

    def start(self, label: str, total: int, done: int = 0) -> None:
        """A run begins, or goes on after `done` of its `total` epochs."""

    def advance(self, note: str = "") -> None:
        """An epoch is done."""

    def finish(self) -> None:
        """The run is done."""


class Silent:
    """Reports nothing."""

    def start(self, label: str, total: int, done: int = 0) -> None:
        pass

    def advance(self, note: str = "") -> None:
        pass

    def finish(self) -> None:
        pass


class Lines:
    """A line when a run begins and when it ends, and now and then between.

    Args:
        runs: how many there are.
        say: takes a line.
        pause: seconds between two lines about the epochs of a run.
    """

    def __init__(self, runs: int, say: Callable[[str], None], pause: float = 30.0) -> None:
        self._runs, self._done, self._say, self._pause = runs, 0, say, pause
        self._note, self._begun, self._said = "", 0.0, 0.0
        self._epochs = self._first = self._total = 0

    def start(self, label: str, total: int, done: int = 0) -> None:
        self._begun = self._said = time.monotonic()
        self._epochs, self._first, self._total = done, done, total
        resumed = f", goes on after epoch {done}" if done else ""
        self._say(f"[{self._done + 1}/{self._runs}] {label}{resumed}")

    def advance(self, note: str = "") -> None:
        self._note = note
        self._epochs += 1
        now = time.monotonic()
        if now - self._said >= self._pause and self._epochs < self._total:
            self._said = now
            left = (now - self._begun) / (self._epochs - self._first) * (self._total - self._epochs)
            self._say(f"    epoch {self._epochs} of {self._total}, about {left:.0f} s left, {note}")

    def finish(self) -> None:
        self._done += 1
        self._say(f"    {time.monotonic() - self._begun:.1f} s, {self._note}")


@contextlib.contextmanager
def progress_on_stderr(runs: int, *, enabled: bool = True) -> Iterator[Progress]:
    """A bar for the runs and one for the epochs of the run at work; lines where stderr is no terminal."""
    if not enabled:
        yield Silent()
        return
    try:
        from rich import progress as bars
        from rich.console import Console
    except ImportError:
        yield Lines(runs, _say)
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(runs, _say)
        return
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(bar_width=24),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TextColumn("left"),
        bars.TimeRemainingColumn(),
        bars.TextColumn("{task.fields[note]}"),
    )
    with bars.Progress(*columns, console=console) as shown:
        yield _Bars(shown, runs)


class _Bars:
    """Rich's bars; the outer one counts runs in fractions, so that its estimate moves with epochs."""

    def __init__(self, shown: object, runs: int) -> None:
        from rich.progress import Progress as RichProgress

        if not isinstance(shown, RichProgress):
            raise TypeError("progress: expected rich's Progress.")
        self._shown, self._total = shown, 1
        self._all = shown.add_task("all runs", total=runs, note="")
        self._one = shown.add_task("", total=None, note="")

    def start(self, label: str, total: int, done: int = 0) -> None:
        self._total = total
        self._shown.reset(self._one, description=label, total=total, completed=done, note="")
        self._shown.advance(self._all, done / total)

    def advance(self, note: str = "") -> None:
        self._shown.advance(self._one)
        self._shown.advance(self._all, 1 / self._total)
        self._shown.update(self._one, note=note)

    def finish(self) -> None:
        self._shown.refresh()


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
