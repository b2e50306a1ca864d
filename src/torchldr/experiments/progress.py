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
    """A line when a run begins and when it ends."""

    def __init__(self, runs: int, say: Callable[[str], None]) -> None:
        self._runs, self._done, self._say = runs, 0, say
        self._label, self._note, self._begun = "", "", 0.0

    def start(self, label: str, total: int, done: int = 0) -> None:
        self._label, self._begun = label, time.monotonic()
        resumed = f", goes on after epoch {done}" if done else ""
        self._say(f"[{self._done + 1}/{self._runs}] {label}{resumed}")

    def advance(self, note: str = "") -> None:
        self._note = note

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
