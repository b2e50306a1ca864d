"""What the steps of one call share: seed, time limit, progress, and the metric of every weight.

Results depend on the model, the data and the seed. Work is counted: rows, multiply-adds, estimated
microseconds of a projection. Only a time limit that the user sets looks at the clock.
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
        seed: of projections and random directions.
        time_limit: in seconds; None for no limit.
        report: called with (stage, done, total).
        metrics: what errors of weights count by, by their names; of others, by the number of entries.
    """

    seed: int = 0
    time_limit: float | None = None
    report: Report = silent
    metrics: dict[str, Metric] = field(default_factory=dict)
    partial: bool = False  # an interrupt ends the work where there are results already
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
        """What errors of a weight count by: a copy, whose roots go with it, since all together are large."""
        known = self.metrics.get(weight.name)
        return PLAIN.relative(weight.size, weight.matrices) if known is None else replace(known)


def check_count(who: str, **values: object) -> None:
    """Raise for values that are not ints of at least 1."""
    for key, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{who}: {key} must be an int of at least 1, got {value!r}.")


def check_time(who: str, time_limit: Any) -> None:
    """Raise for what is neither None nor a positive number of seconds."""
    if time_limit is None:
        return
    if (
        isinstance(time_limit, bool)
        or not isinstance(time_limit, float | int)
        or not 0 < time_limit < math.inf
    ):
        raise ValueError(f"{who}: time_limit is in seconds, a positive number, got {time_limit!r}.")
