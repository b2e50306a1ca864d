"""The language models that the ledger lacks, trained together; stopped and resumed between epochs.

Fleets of several classes go through the text together, step by step: on a GPU each has a stream of its
own, and the short kernels of one recurrence fill the gaps of the other's. Between epochs each replica's
rate is annealed by its own validation loss.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

from ..data.text import Corpus
from ..ledger.ledger import Ledger
from ..ledger.records import Record
from ..protocol import LanguageProtocol, Run
from ..trainer.checkpoint import CheckpointFile, Claim
from ..trainer.library import Library
from ..trainer.parallel import Backend, Done, OutOfTimeError, Task, Update, Work
from ..trainer.progress import Tell
from ..trainer.selection import Best, peak
from ..trainer.sweep import Report, sweep
from .fleet import LanguageFleet
from .text import Masks, Text
from .weights import count_parameters

Say = Callable[[str], None]

CHECKPOINT_SECONDS = 180.0  # the tables of words are large: save them seldom
_SLACK = 1.15  # an epoch may take so much longer than the last one
_METRICS = ("train", "validation", "test", "rate")
_KEPT = ("epoch", "seconds", "history", "best")  # of a training, besides its tensors


class FleetTraining:
    """A fleet with its history.

    Attributes:
        fleet: the replicas.
        key: of the checkpoint.
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
        joined = " ".join(run.hash for run in runs)
        self.key = hashlib.sha256(joined.encode()).hexdigest()[:16] if len(runs) > 1 else joined
        self.file = CheckpointFile(results, self.key, text.fingerprint)
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
        state = {name: getattr(self, name) for name in _KEPT}
        self.file.save({**self.fleet.parameters(), "rates": self.fleet.rates}, state)

    @torch.no_grad()
    def _resume(self) -> None:
        if (found := self.file.load()) is None:
            return
        tensors, state = found
        for name, tensor in {**self.fleet.parameters(), "rates": self.fleet.rates}.items():
            tensor.copy_(tensors[name].reshape(tensor.shape))
        for name in _KEPT:
            setattr(self, name, state[name])

    def records(self) -> list[Record]:
        """What the ledger keeps, one record a run."""
        text = self.fleet.text
        results = (self._result(index) for index in range(len(self.runs)))
        return [
            Record.now(run, text, text.counts, result) for run, result in zip(self.runs, results, strict=True)
        ]

    def _result(self, index: int) -> dict[str, Any]:
        run, protocol = self.runs[index], self.fleet.protocol
        metrics = {name: [[row[index]] for row in rows] for name, rows in self.history.items()}
        metrics |= {name: [[perplexity(loss)] for (loss,) in metrics[name]] for name in _METRICS[:3]}
        best, found = None, peak(metrics["validation"], [0], least=True)
        if found is not None:
            scores = {
                name: metrics[name][found[0]][0] or math.inf for name in ("validation", "test", "train")
            }
            best = Best(0, protocol.lrs[0], 0, found[0], **scores).__dict__
        lost = next((e for e, (value,) in enumerate(metrics["validation"]) if value is None), None)
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
            "metrics": metrics,
        }


def perplexity(loss: float | None) -> float | None:
    """exp of a mean loss, None where it is none or too large."""
    return round(math.exp(loss), 4) if loss is not None and loss < 100 else None


def train_epoch(trainings: Sequence[FleetTraining], masks: Masks) -> None:
    """One epoch of fleets that have done equally many, side by side."""
    begun, text = time.perf_counter(), trainings[0].fleet.text
    masks.draw(trainings[0].epoch)
    for training in (True, False):
        for one in trainings:
            (one.fleet.begin_training if training else one.fleet.begin_scoring)()
        _wait(text.device)
        bptt = trainings[0].fleet.protocol.bptt
        rows = len(text.train if training else text.scored) - 1
        for start in range(0, rows, bptt):
            for one in trainings:
                one.fleet.advance(min(bptt, rows - start), training=training)
        _wait(text.device)
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


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def sweep_language(
    runs: Iterable[Run],
    ledger: Ledger,
    device: torch.device,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    max_seconds: float | None = None,
    say: Say = lambda message: None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> Report:
    """Train what the ledger lacks and append it: `sweep`, of language models that are trained together.

    Args:
        runs, ledger, force: see `sweep`.
        device, data_dir: where to train, and a data folder.
        max_seconds: stop between epochs, with a checkpoint, before this time is over.
        say: called with a line an epoch.
        checkpoint_seconds: save after an epoch, but not sooner than this after the last time.
    """
    together = SideBySide(max_seconds, say, checkpoint_seconds)
    library = Library(device, data_dir)
    return sweep(runs, ledger, library, backend=together, force=force, max_seconds=max_seconds)


class SideBySide(Backend):
    """Trains all language models that it is given together, an epoch whenever it is polled.

    For the arguments see `sweep_language`.
    """

    width, pause = sys.maxsize, 0.0

    def __init__(
        self, max_seconds: float | None, say: Say, checkpoint_seconds: float = CHECKPOINT_SECONDS
    ) -> None:
        self._begun = time.monotonic()
        self._deadline = self._begun + (math.inf if max_seconds is None else max_seconds)
        self._say, self._checkpoint_seconds = say, checkpoint_seconds
        self._waiting: dict[object, list[Task]] = {}  # by what can be trained together
        self._futures: dict[str, Future[Done]] = {}
        self._epochs: Iterator[None] = iter(())

    def submit(self, work: Work, task: Task, library: Library, update: Update) -> Future[Done]:
        self._library, run = library, task.run
        self._waiting.setdefault((run.seed, run.protocol), []).append(task)
        self._futures[run.hash] = Future()
        return self._futures[run.hash]

    def poll(self, update: Update) -> None:
        try:
            next(self._epochs)
        except StopIteration:
            self._epochs = self._train()
        except OutOfTimeError as error:
            self._fail([*self._futures], error)
            self._waiting.clear()

    def _train(self) -> Iterator[None]:
        while self._waiting:
            tasks = self._waiting.pop(next(iter(self._waiting)))
            try:
                yield from self._train_group(tasks)
            except OutOfTimeError:
                raise
            except Exception as error:  # those of other groups can be trained
                self._fail([task.run.hash for task in tasks], error)

    def _fail(self, hashes: Iterable[str], error: Exception) -> None:
        for key in hashes:
            if key in self._futures:
                self._futures.pop(key).set_exception(error)

    def _train_group(self, tasks: Sequence[Task]) -> Iterator[None]:
        trainings, masks = begin([task.run for task in tasks], self._library, tasks[0].results)
        for one in trainings:
            self._say(f"{one.label}: {'goes on after epoch' if one.epoch else 'epoch'} {one.epoch}")
        length, epochs = 0.0, train_together(trainings, masks, self._checkpoint_seconds)
        while trainings:
            begun = time.monotonic()
            if begun + _SLACK * length >= self._deadline:
                for one in trainings:
                    one.save()
                self._say(f"stopped after {begun - self._begun:.0f} s, with a checkpoint")
                raise OutOfTimeError
            if active := next(epochs, []):
                length, done, total = (
                    time.monotonic() - begun,
                    active[0].epoch,
                    active[0].fleet.protocol.epochs,
                )
                told = f"epoch {done} of {total}, {length:.1f} s, about {length * (total - done):.0f} s left"
                self._say(f"{told}, validation: {describe(active)}")
            for one in [one for one in trainings if one.finished]:
                trainings.remove(one)
                for record in one.records():
                    key = one.key if record.run is one.runs[-1] else None
                    self._futures.pop(record.hash).set_result(Done(record, checkpoint=key))
            yield


def train_language(task: Task, library: Library, tell: Tell) -> Done:
    """Train one run by itself, as `sweep` wants it; its record is that of `sweep_language`."""
    run = task.run
    (training,), masks = begin([run], library, task.results)
    seen = Claim(task.results, run.hash).is_seen()
    tell(training.epoch, run.epochs, "")
    for _ in train_together([training], masks, CHECKPOINT_SECONDS if seen else math.inf):
        tell(training.epoch, run.epochs, describe([training]))
    (record,) = training.records()
    notes = {**record.result["notes"], **task.notes}
    return Done(dataclasses.replace(record, result={**record.result, "notes": notes}))


def begin(runs: Sequence[Run], library: Library, results: Path) -> tuple[list[FleetTraining], Masks]:
    """A fleet for each class of runs of one seed and protocol, as it starts or was left."""
    first, corpus = runs[0], library.data(runs[0])
    if not isinstance(corpus, Corpus) or not isinstance(first.protocol, LanguageProtocol):
        raise TypeError(f"{first.label}: no language model.")
    classes: dict[object, list[Run]] = {}
    for run in runs:
        alike = run.structure, run.init, run.init_std, run.gain, run.even, run.fixed, run.one_bias
        classes.setdefault(alike, []).append(run)
    text = Text.of(corpus, first.protocol, library.device)
    masks = Masks(text, first.protocol, first.seed)
    return [FleetTraining(group, text, masks, results) for group in classes.values()], masks


def train_together(
    trainings: Sequence[FleetTraining], masks: Masks, checkpoint_seconds: float
) -> Iterator[list[FleetTraining]]:
    """Train fleets side by side to their end; after every epoch come those that took part in it."""
    saved = time.monotonic()
    while waiting := [one for one in trainings if not one.finished]:
        # Those that an earlier session left behind catch up first.
        lowest = min(one.epoch for one in waiting)
        active = [one for one in waiting if one.epoch == lowest]
        train_epoch(active, masks)
        if time.monotonic() - saved >= checkpoint_seconds:
            for one in active:
                one.save()
            saved = time.monotonic()
        yield active
