from __future__ import annotations

import pytest

from torchldr_paper.protocol import Replica
from torchldr_paper.trainer.selection import Best, select_best, select_mean

REPLICAS = [Replica(0.1, 0), Replica(0.1, 1), Replica(0.2, 0), Replica(0.2, 1)]


def metrics(
    validation: list[list[float | None]], test: list[list[float | None]]
) -> dict[str, list[list[float | None]]]:
    return {"validation": validation, "test": test, "train": test}


def test_best_over_rates_trials_and_epochs() -> None:
    found = select_best(metrics([[1, 2, 3, 4], [5, 2, 9, 4]], [[10, 20, 30, 40], [50, 60, 70, 80]]), REPLICAS)
    assert found == Best(replica=2, lr=0.2, trial=0, epoch=1, validation=9, test=70, train=70)


def test_ties_go_to_the_earliest_epoch_then_the_first_replica() -> None:
    found = select_best(metrics([[1, 9, 9, 4], [9, 9, 9, 9]], [[10, 20, 30, 40], [50, 60, 70, 80]]), REPLICAS)
    assert found is not None
    assert (found.epoch, found.replica, found.test) == (0, 1, 20)


def test_diverged_replicas_count_until_they_diverge() -> None:
    found = select_best(
        metrics([[8, 2, None, 4], [None, 3, None, 4]], [[1, 2, None, 4], [None, 6, None, 8]]), REPLICAS
    )
    assert found is not None
    assert (found.epoch, found.replica) == (0, 0)
    assert select_best(metrics([[None] * 4], [[None] * 4]), REPLICAS) is None
    assert select_best(metrics([], []), REPLICAS) is None
    assert select_mean(metrics([[None] * 4], [[None] * 4]), REPLICAS) is None


def test_mean_takes_the_rate_with_the_best_average_validation() -> None:
    # Rate .1 has the best single trial, rate .2 the best average.
    found = select_mean(metrics([[9, 1, 6, 7], [8, 2, 5, 8]], [[90, 10, 60, 70], [80, 20, 50, 80]]), REPLICAS)
    assert found is not None
    assert (found.lr, found.trials, found.validation) == (0.2, 2, 7)
    assert found.test == pytest.approx(70)
    assert found.deviation == pytest.approx(200**0.5)
