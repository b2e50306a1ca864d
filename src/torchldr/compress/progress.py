"""How far a compression is, how long it may still take, and the limit of its time."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

from ..progress import Report, reporting

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


class Clock:
    """The time that something may take, in minutes; None for no limit."""

    def __init__(self, minutes: float | None) -> None:
        self.start, self.seconds = time.monotonic(), None if minutes is None else 60 * minutes

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start

    def past(self, share: float) -> bool:
        """Whether this share of the time is over."""
        return self.seconds is not None and self.spent > share * self.seconds

    def lacks(self, seconds: float) -> bool:
        """Whether less than this is left."""
        return self.seconds is not None and self.spent + seconds > self.seconds

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


def check_count(who: str, **values: object) -> None:
    """Raise for values that are not ints of at least 1."""
    for key, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{who}: {key} must be an int of at least 1, got {value!r}.")


def check_effort(who: str, effort: object, default: float | None) -> float | None:
    """The minutes, or an error."""
    if effort is None:
        return default
    if isinstance(effort, bool) or not isinstance(effort, float | int) or not 0 < effort < float("inf"):
        raise ValueError(f"{who}: effort is in minutes, a positive number, got {effort!r}.")
    return float(effort)


def shown(choice: bool | Report | None, clock: Clock) -> AbstractContextManager[Report]:
    """The callback for a choice of progress, as `reporting` has it; the time left is that of all stages."""
    first: float | None = None  # where the first stage begins: not all of them are there

    def left(stage: str, done: int, total: int | None) -> float | None:
        nonlocal first
        begin, end = next((ends for kind, ends in _ENDS.items() if stage.startswith(kind)), (0.0, 1.0))
        first = begin if first is None else first
        behind = begin + (end - begin) * done / total if total else begin
        return clock.left((behind - first) / (1 - first))

    return reporting(choice, left=left)
