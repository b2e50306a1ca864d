"""Language models from their first epoch, or from where they were interrupted, to their records.

Fleets of several classes go through the text together, step by step: on a GPU each has a stream of its
own, and the short kernels of one recurrence fill the gaps of the other's. Between epochs each replica's
rate is annealed by its own validation loss.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..ledger.records import Record, device_name, versions
from ..protocol import Run
from ..trainer.checkpoint import CheckpointFile
from ..trainer.selection import Best
from .fleet import LanguageFleet
from .text import Masks, Text
from .weights import count_parameters

_METRICS = ("train", "validation", "test", "rate")


class FleetTraining:
    """A fleet with its history.

    Attributes:
        fleet: the replicas.
        epoch: epochs done.
        history: for each metric a row an epoch with an entry a replica: mean losses, and learning rates.
        seconds: this fleet's share of the time.
        together: how many models shared the device in the last epoch.
    """

    def __init__(self, runs: Sequence[Run], text: Text, masks: Masks, results: Path) -> None:
        self.fleet, self.runs = LanguageFleet(runs, text, masks), tuple(runs)
        self.epoch, self.seconds, self.together = 0, 0.0, len(runs)
        self.history: dict[str, list[list[float | None]]] = {name: [] for name in _METRICS}
        self.best: list[float | None] = [None] * len(runs)
        key = hashlib.sha256(" ".join(run.hash for run in runs).encode()).hexdigest()[:16]
        key = key if len(runs) > 1 else runs[0].hash
        self.file = CheckpointFile(results, key, text.fingerprint)
        self._resume()

    @property
    def finished(self) -> bool:
        return self.epoch >= self.fleet.protocol.epochs

    @property
    def label(self) -> str:
        first, ranks = self.runs[0], ",".join(str(run.rank) for run in self.runs)
        return first.label.replace(f" r={first.rank}", f" r={ranks}")

    def note(self) -> None:
        """Take the scores of an epoch and anneal."""
        scores = self.fleet.scores()
        rates = self.fleet.rates.tolist()
        for name, values in zip(_METRICS, (*scores, rates), strict=True):
            self.history[name].append([value if math.isfinite(value) else None for value in values])
        for index, loss in enumerate(scores.validation):
            best = self.best[index]
            if best is None or loss < best:
                self.best[index] = loss if math.isfinite(loss) else best
            else:
                rates[index] /= self.fleet.protocol.anneal
        self.fleet.rates.copy_(torch.tensor(rates, dtype=self.fleet.rates.dtype))
        self.epoch += 1

    def save(self) -> None:
        state = {"epoch": self.epoch, "seconds": self.seconds, "history": self.history, "best": self.best}
        self.file.save({**self.fleet.parameters(), "rates": self.fleet.rates}, state)

    @torch.no_grad()
    def _resume(self) -> None:
        found = self.file.load()
        if found is None:
            return
        for name, tensor in {**self.fleet.parameters(), "rates": self.fleet.rates}.items():
            tensor.copy_(found.tensors[name].reshape(tensor.shape))
        self.epoch, self.seconds = found.state["epoch"], found.state["seconds"]
        self.history, self.best = found.state["history"], found.state["best"]

    def records(self) -> list[Record]:
        """What the ledger keeps, one record a run."""
        text = self.fleet.text
        train, validation, test = text.counts
        data = {
            "source": text.source,
            "fingerprint": text.fingerprint,
            "train": train,
            "validation": validation,
            "test": test,
        }
        machine = {"device": device_name(text.device), "versions": versions()}
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return [Record(run, data, self._result(index), machine, now) for index, run in enumerate(self.runs)]

    def _result(self, index: int) -> dict[str, Any]:
        run, protocol = self.runs[index], self.fleet.protocol
        curves = {name: [row[index] for row in rows] for name, rows in self.history.items()}
        metrics = {name: [perplexity(loss) for loss in curves[name]] for name in _METRICS[:3]}
        metrics["rate"] = curves["rate"]
        told = [(value, e) for e, value in enumerate(metrics["validation"]) if value is not None]
        best = None
        if told:
            value, e = min(told)
            scores = {name: metrics[name][e] or math.inf for name in ("test", "train")}
            best = Best(0, protocol.lrs[0], 0, e, value, **scores).__dict__
        lost = next((e for e, value in enumerate(metrics["validation"]) if value is None), None)
        size = protocol.hidden
        model = 2 * self.fleet.text.words * size + self.fleet.text.words + 4 * size * (size + 2)
        structured = count_parameters(run.structure, size, run.rank, fixed=bool(run.fixed))
        return {
            "parameters": structured,
            "seconds": round(self.seconds / len(self.runs), 2),
            "best": best,
            "mean": None,
            "diverged": [lost],
            "notes": {"all parameters": model + structured, "trained together": self.together},
            "metrics": {name: [[value] for value in values] for name, values in metrics.items()},
        }


def perplexity(loss: float | None) -> float | None:
    """exp of a mean loss, None where it is none or too large."""
    return round(math.exp(loss), 4) if loss is not None and loss < 100 else None


def train_epoch(trainings: Sequence[FleetTraining], masks: Masks) -> None:
    """One epoch of fleets that have done equally many, side by side."""
    begun = time.perf_counter()
    masks.draw(trainings[0].epoch)
    for training in (True, False):
        for one in trainings:
            (one.fleet.begin_training if training else one.fleet.begin_scoring)()
        _wait(masks)
        text, bptt = trainings[0].fleet.text, trainings[0].fleet.protocol.bptt
        rows = len(text.train if training else text.scored) - 1
        for start in range(0, rows, bptt):
            for one in trainings:
                one.fleet.advance(min(bptt, rows - start), training=training)
        _wait(masks)
    models = sum(len(one.runs) for one in trainings)
    for one in trainings:
        one.note()
    seconds = time.perf_counter() - begun
    for one in trainings:
        one.seconds += seconds * len(one.runs) / models
        one.together = models


def describe(trainings: Sequence[FleetTraining]) -> str:
    """The last epoch in a line: validation perplexities by class and rank."""
    parts = []
    for one in trainings:
        values = [perplexity(loss) for loss in one.history["validation"][-1]]
        told = " ".join("-" if value is None else f"{value:.1f}" for value in values)
        parts.append(" ".join([one.runs[0].method, *one.runs[0].marks, told]))
    return "; ".join(parts)


def _wait(masks: Masks) -> None:
    if masks.kept is not None and masks.kept.is_cuda:
        torch.cuda.synchronize(masks.kept.device)
    elif torch.cuda.is_available():
        torch.cuda.synchronize()


Say = Callable[[str], None]
