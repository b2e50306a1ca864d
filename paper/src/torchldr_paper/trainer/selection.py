"""From metrics by epoch and replica to a result.

    best   the test accuracy where validation is highest, over all rates, trials and epochs: the
           paper's tables
    mean   every trial at its best epoch, averaged over the trials of the learning rate whose average
           validation is highest: the paper's figure of accuracy against rank

Ties go to the earliest epoch, then to the first replica. A diverged replica counts up to the epoch
before it diverged.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..protocol import Replica

Column = Sequence[Sequence[float | None]]
"""One metric: a row an epoch, an entry a replica, None where it has diverged."""


@dataclass(frozen=True)
class Best:
    """The selected network of a run."""

    replica: int
    lr: float
    trial: int
    epoch: int
    validation: float
    test: float
    train: float


@dataclass(frozen=True)
class Mean:
    """The trials of the selected learning rate: means, and deviation of the test accuracy."""

    lr: float
    trials: int
    validation: float
    test: float
    deviation: float


def select_best(metrics: Mapping[str, Column], replicas: Sequence[Replica]) -> Best | None:
    """The network with the highest validation accuracy, or None if all diverged at once."""
    found = peak(metrics["validation"], range(len(replicas)))
    if found is None:
        return None
    epoch, index = found
    scores = {name: metrics[name][epoch][index] or 0.0 for name in ("validation", "test", "train")}
    return Best(index, replicas[index].lr, replicas[index].trial, epoch, **scores)


def select_mean(metrics: Mapping[str, Column], replicas: Sequence[Replica]) -> Mean | None:
    """The learning rate with the highest average validation accuracy over trials that have any."""
    means = []
    for lr in dict.fromkeys(replica.lr for replica in replicas):
        peaks = [peak(metrics["validation"], [i]) for i, replica in enumerate(replicas) if replica.lr == lr]
        places = [place for place in peaks if place is not None]
        if not places:
            continue
        validation = [metrics["validation"][e][i] or 0.0 for e, i in places]
        test = [metrics["test"][e][i] or 0.0 for e, i in places]
        deviation = statistics.stdev(test) if len(test) > 1 else 0.0
        means.append(Mean(lr, len(test), statistics.fmean(validation), statistics.fmean(test), deviation))
    return max(means, key=lambda mean: mean.validation, default=None)


def peak(column: Column, indices: Sequence[int], *, least: bool = False) -> tuple[int, int] | None:
    """(epoch, replica) of the highest entry among some replicas, or of the lowest; None where is none."""
    entries = [
        (-value if least else value, -epoch, -index)
        for epoch, row in enumerate(column)
        for index in indices
        if (value := row[index]) is not None
    ]
    if not entries:
        return None
    _, epoch, index = max(entries)
    return -epoch, -index
