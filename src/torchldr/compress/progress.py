"""How far a compression is and how long it may still take: one line on stderr, and the limit of its time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[str, int, int], None]
# How the time is shared between the stages that a loader's compression goes through, roughly.
CALIBRATING, CHOOSING, PROJECTING, CHECKING = "calibrating", "looking at", "projecting", "checking"
FITTING = "fitting in order"
_ENDS = {
    CALIBRATING: (0.0, 0.45),
    CHOOSING: (0.45, 0.65),
    PROJECTING: (0.65, 0.75),
    CHECKING: (0.75, 0.85),
    FITTING: (0.85, 1.0),
}
_EVERY = 0.2  # seconds between two writings of the line


class Clock:
    """The time that something may take, in minutes.

    Args:
        minutes: the limit, or None for no limit.
    """

    def __init__(self, minutes: float | None) -> None:
        self.start, self.seconds = time.monotonic(), None if minutes is None else 60 * minutes

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start

    def past(self, share: float) -> bool:
        """Whether this share of the time is over."""
        return self.seconds is not None and self.spent > share * self.seconds

    def deadline(self, share: float) -> float | None:
        """When this share of the time is over, by `time.time()`, which all processes share."""
        return None if self.seconds is None else time.time() + share * self.seconds - self.spent

    def left(self, done: float) -> float | None:
        """Seconds that are left with a share `done` of the work behind us; at most what the limit leaves."""
        rest = None if self.seconds is None else max(0.0, self.seconds - self.spent)
        if done < 0.02:  # too early to say more
            return rest
        guess = self.spent * (1 - done) / done
        return guess if rest is None else min(guess, rest)


def check_effort(who: str, effort: object) -> float:
    """The minutes, or an error."""
    if isinstance(effort, bool) or not isinstance(effort, float | int) or not 0 < effort < float("inf"):
        raise ValueError(f"{who}: effort is in minutes, a positive number, got {effort!r}.")
    return float(effort)


@contextmanager
def shown(choice: bool | Report | None, clock: Clock) -> Iterator[Report]:
    """The callback for a choice of progress.

    Args:
        choice: a function is itself; True writes a line on stderr; None does where stderr is a terminal;
            False is quiet.
        clock: for the time that is left.
    """
    if callable(choice):
        yield choice
    elif choice is False or (choice is None and not sys.stderr.isatty()):
        yield lambda stage, done, total: None
    else:
        line = _Line(clock)
        try:
            yield line
        finally:
            line.close()


class _Line:
    """One line on stderr that is written over: the stage, its steps, the time so far and the time left."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.written, self.width, self.stage = clock, float("-inf"), 0, ""
        self.first: float | None = None  # where the first stage begins: not all of them are there

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        kind = next((kind for kind in _ENDS if stage.startswith(kind)), "")
        if now - self.written < _EVERY and kind == self.stage:
            return
        self.written, self.stage = now, kind
        first, last = _ENDS.get(kind, (0.0, 1.0))
        self.first = first if self.first is None else self.first
        behind = first + (last - first) * done / total if total else first
        left = self.clock.left((behind - self.first) / (1 - self.first))
        count = f" {done}/{total}" if total else f" {done}" if done else ""
        ending = "" if left is None else f", about {_time(left)} left"
        self._write(f"{stage}{count}, {_time(self.clock.spent)}{ending}")

    def _write(self, text: str) -> None:
        sys.stderr.write("\r" + text.ljust(self.width) + ("" if text else "\r"))
        sys.stderr.flush()
        self.width = len(text)

    def close(self) -> None:
        if self.width:
            self._write("")


def _time(seconds: float) -> str:
    """Minutes and seconds.

    >>> _time(75.2)
    '1:15'
    """
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
