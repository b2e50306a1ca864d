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
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from ..data import DatasetNotFoundError
from ..data.text import Corpus, load_corpus
from ..ledger.ledger import Ledger
from ..ledger.records import Record
from ..protocol import LanguageProtocol, Run
from ..trainer.checkpoint import CheckpointFile, Claim
from ..trainer.library import Library
from ..trainer.parallel import Done, Task
from ..trainer.progress import Tell
from ..trainer.selection import Best
from ..trainer.sweep import Report
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
    """Train what the ledger lacks and append it.

    Args:
        runs: language models; repetitions are run once.
        ledger: where finished runs are looked up and written. Checkpoints lie beside it.
        device: where to train.
        data_dir: a data folder, see `torchldr_paper.data`.
        force: run even what is in the ledger.
        max_seconds: stop between epochs, with a checkpoint, before this time is over.
        say: called with a line an epoch.
        checkpoint_seconds: save after an epoch, but not sooner than this after the last time.

    Returns:
        What became of each run. A corpus that is not here is reported, not raised.
    """
    begun, report = time.monotonic(), Report()
    deadline = begun + (math.inf if max_seconds is None else max_seconds)
    wanted = list({run.hash: run for run in runs}.values())
    if not wanted:
        return report
    name = wanted[0].data
    try:
        corpus = load_corpus(name, data_dir)
    except DatasetNotFoundError as error:
        report.absent[name] = str(error)
        return report
    before = {run.hash: ledger.find(run, fingerprint=corpus.fingerprint) for run in wanted}
    todo = [run for run in wanted if force or before[run.hash] is None]
    report.present.extend(run for run in wanted if run not in todo)
    if not todo:
        return report
    ledger.prepare()
    with ExitStack() as claims:
        for run in sorted(todo, key=lambda run: run.hash):  # so that two processes do not wait for each other
            claim = Claim(ledger.results, run.hash)
            if not claim.take():
                say(f"{run.label}: another process trains it, waiting")
                if not claim.take(deadline - time.monotonic()):
                    report.left.extend(todo)
                    return report
            claims.callback(claim.release)
        ledger.read_again()  # what other processes have finished before they gave it free
        missing = [
            run for run in todo if ledger.find(run, fingerprint=corpus.fingerprint) is before[run.hash]
        ]
        report.present.extend(run for run in todo if run not in missing)
        alike: dict[object, list[Run]] = {}  # what can be trained together
        for run in missing:
            alike.setdefault((run.seed, run.protocol), []).append(run)
        for group in alike.values():
            trainings, masks = _begin(group, corpus, device, ledger.results)
            _train(trainings, masks, ledger, report, begun, deadline, say, checkpoint_seconds)
    return report


def train_language(task: Task, library: Library, tell: Tell) -> Done:
    """Train one run by itself, as `sweep` wants it; its record is that of `sweep_language`."""
    run, corpus = task.run, library.data(task.run)
    if not isinstance(corpus, Corpus):
        raise TypeError(f"{run.label}: no language model.")
    seen, saved = Claim(task.results, run.hash).is_seen(), time.monotonic()
    (training,), masks = _begin([run], corpus, library.device, task.results)
    tell(training.epoch, run.epochs, "")
    while not training.finished:
        train_epoch([training], masks)
        tell(training.epoch, run.epochs, describe([training]))
        if seen and time.monotonic() - saved >= CHECKPOINT_SECONDS:
            training.save()
            saved = time.monotonic()
    (record,) = training.records()
    notes = {**record.result["notes"], **task.notes}
    return Done(dataclasses.replace(record, result={**record.result, "notes": notes}))


def _begin(
    runs: Sequence[Run], corpus: Corpus, device: torch.device, results: Path
) -> tuple[list[FleetTraining], Masks]:
    """A fleet for each class of runs of one seed and protocol, as it starts or was left."""
    protocol = runs[0].protocol
    if not isinstance(protocol, LanguageProtocol):
        raise TypeError(f"{runs[0].label}: expected a LanguageProtocol, got {type(protocol).__name__}.")
    classes: dict[object, list[Run]] = {}
    for run in runs:
        alike = run.structure, run.init, run.init_std, run.gain, run.even, run.fixed
        classes.setdefault(alike, []).append(run)
    text = Text.of(corpus, protocol, device)
    masks = Masks(text, protocol, runs[0].seed)
    return [FleetTraining(group, text, masks, results) for group in classes.values()], masks


def _train(
    trainings: Sequence[FleetTraining],
    masks: Masks,
    ledger: Ledger,
    report: Report,
    begun: float,
    deadline: float,
    say: Say,
    checkpoint_seconds: float,
) -> None:
    """Train fleets side by side to their end, or until the deadline would be passed."""
    for one in trainings:
        say(f"{one.label}: {'goes on after epoch' if one.epoch else 'epoch'} {one.epoch}")
    epochs, saved, length = trainings[0].fleet.protocol.epochs, time.monotonic(), 0.0
    while waiting := [one for one in trainings if not one.finished]:
        started = time.monotonic()
        if started + _SLACK * length >= deadline:
            for one in waiting:
                one.save()
                report.left.extend(one.runs)
            say(f"stopped after {started - begun:.0f} s, with a checkpoint")
            break
        # Those that an earlier session left behind catch up first.
        lowest = min(one.epoch for one in waiting)
        active = [one for one in waiting if one.epoch == lowest]
        train_epoch(active, masks)
        length = time.monotonic() - started
        left = length * (epochs - lowest - 1)
        say(
            f"epoch {lowest + 1} of {epochs}, {length:.1f} s, about {left:.0f} s left, "
            f"validation: {describe(active)}"
        )
        if time.monotonic() - saved >= checkpoint_seconds:
            for one in active:
                one.save()
            saved = time.monotonic()
        for one in active:
            if one.finished:
                for record in one.records():
                    ledger.append(record)
                report.finished.extend(one.runs)
                one.file.remove()
