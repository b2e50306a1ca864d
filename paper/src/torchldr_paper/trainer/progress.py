"""Progress on stderr, one display for all runs with the time left: rich's bars, else plain lines."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from rich import progress as bars
from rich.console import Console

from torchldr.cli import say

Tell = Callable[[int, int, str], None]
"""Called with the epochs that a run has done, of how many, and a note: first where it begins."""


class Event(NamedTuple):
    """How far a run is."""

    label: str
    node: str
    epoch: int
    total: int
    note: str


class Progress:
    """What a sweep reports to; this one shows nothing, and keeps what is at work.

    Args:
        runs: how many there are.
    """

    def __init__(self, runs: int) -> None:
        self.runs, self.done = runs, 0
        self.at_work: dict[str, Event] = {}
        self._begun, self._resumed = time.monotonic(), 0.0

    def update(self, key: str, event: Event) -> None:
        """A run has begun, perhaps after some epochs, or is an epoch further."""
        if key not in self.at_work:
            self._resumed += event.epoch / event.total
        self.at_work[key] = event

    def finish(self, key: str, message: str) -> None:
        """A run is done."""
        self.at_work.pop(key, None)
        self.done += 1

    @property
    def shares(self) -> float:
        """How many runs are done, with what is done of those at work."""
        return self.done + sum(event.epoch / event.total for event in self.at_work.values())

    @property
    def seconds_left(self) -> float | None:
        """Until all runs are done, as fast as it went so far."""
        made = self.shares - self._resumed
        return (time.monotonic() - self._begun) / made * (self.runs - self.shares) if made > 0 else None


class Lines(Progress):
    """A line for each run that is done, and now and then one for those at work.

    Args:
        runs: how many there are.
        say: takes a line.
        pause: seconds between two lines about what is at work.
    """

    def __init__(self, runs: int, say: Callable[[str], None], pause: float = 30.0) -> None:
        super().__init__(runs)
        self._say, self._pause, self._said = say, pause, time.monotonic()

    def update(self, key: str, event: Event) -> None:
        super().update(key, event)
        now = time.monotonic()
        if now - self._said < self._pause:
            return
        self._said = now
        nodes = {event.node for event in self.at_work.values()}
        least = min(self.at_work.values(), key=lambda event: event.epoch / event.total)
        left = self.seconds_left
        self._say(
            f"    {len(self.at_work)} at work on {', '.join(sorted(nodes)[:4])}"
            f"{' ..' if len(nodes) > 4 else ''}; {least.label} at epoch {least.epoch} of {least.total}"
            + ("" if left is None else f"; about {left:.0f} s left")
        )

    def finish(self, key: str, message: str) -> None:
        event = self.at_work.get(key)
        super().finish(key, message)
        self._say(f"[{self.done}/{self.runs}] {message}{'' if event is None else f', {event.node}'}")


class Bars(Progress):
    """Rich's bars: one for all runs, and one for each of the first at work."""

    SHOWN = 12

    def __init__(self, runs: int, bars: Any) -> None:
        super().__init__(runs)
        self._bars, self._rows = bars, dict[str, Any]()
        self._all = bars.add_task("all runs", total=runs, note="")

    def update(self, key: str, event: Event) -> None:
        super().update(key, event)
        if key not in self._rows and len(self._rows) < self.SHOWN:
            self._rows[key] = self._bars.add_task(event.label, total=event.total, note="")
        if key in self._rows:
            note = f"{event.note} {event.node}".strip()
            self._bars.update(self._rows[key], completed=event.epoch, note=note)
        self._refresh()

    def finish(self, key: str, message: str) -> None:
        super().finish(key, message)
        if key in self._rows:
            self._bars.remove_task(self._rows.pop(key))
        self._refresh()

    def _refresh(self) -> None:
        # Runs in fractions, so that the time left moves with epochs.
        self._bars.update(self._all, completed=round(self.shares, 2), note=f"{len(self.at_work)} at work")


@contextlib.contextmanager
def progress_on_stderr(runs: int) -> Iterator[Progress]:
    """Bars on a terminal, else lines."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(runs, say)
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
        yield Bars(runs, shown)
