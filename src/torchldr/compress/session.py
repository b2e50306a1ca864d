"""Shared state of one call: seed, time limit, progress, and the metric of every weight.

Results depend on the model, the data and the seed. Work is counted: rows, multiply-adds, estimated
microseconds of a projection. The clock matters only if the user sets a time limit.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import Any

from ..progress import Report, silent
from .candidates import Weight
from .metric import PLAIN, Metric


@dataclass
class Session:
    """One call's state.

    Attributes:
        seed: random seed of projections and directions.
        time_limit: in seconds; None for no limit.
        report: called with (stage, done, total).
        metrics: metrics of the weights' errors by name; other weights count by their number of entries.
    """

    seed: int = 0
    time_limit: float | None = None
    report: Report = silent
    metrics: dict[str, Metric] = field(default_factory=dict)
    partial: bool = False  # an interrupt returns the results so far, if there are any
    interrupted: bool = False
    begun: float = field(default_factory=time.monotonic)

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.begun

    def past(self, share: float) -> bool:
        """Whether this share of the time limit is over."""
        return self.time_limit is not None and self.spent > share * self.time_limit

    def deadline(self, share: float) -> float | None:
        """When this share of the time limit is over, by `time.monotonic()`."""
        return None if self.time_limit is None else self.begun + share * self.time_limit

    def metric(self, weight: Weight) -> Metric:
        """The metric of a weight's errors. A copy, so that its large cached roots are freed."""
        known = self.metrics.get(weight.name)
        return PLAIN.relative(weight.size, weight.matrices) if known is None else replace(known)


def check_count(who: str, **values: object) -> None:
    """Raise for values that are not ints of at least 1."""
    for key, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{who}: {key} must be an int of at least 1, got {value!r}.")


def check_time(who: str, time_limit: Any) -> None:
    """Raise unless this is None or a positive number of seconds."""
    if time_limit is None:
        return
    if (
        isinstance(time_limit, bool)
        or not isinstance(time_limit, float | int)
        or not 0 < time_limit < math.inf
    ):
        raise ValueError(f"{who}: time_limit is in seconds, a positive number, got {time_limit!r}.")
