"""The language models that the ledger lacks, trained together; stopped and resumed between epochs."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Iterable
from contextlib import ExitStack

import torch

from ..data import DatasetNotFoundError
from ..data.text import Corpus, load_corpus
from ..ledger.claims import Claim, is_claimed
from ..ledger.ledger import Ledger
from ..protocol import Run
from ..trainer.library import Library
from ..trainer.parallel import Done, Task
from ..trainer.progress import Tell
from ..trainer.sweep import Report
from .protocol import LanguageProtocol
from .text import Masks, Text
from .training import FleetTraining, Say, describe, train_epoch

CHECKPOINT_SECONDS = 180.0  # the tables of words are large: save them seldom
_SLACK = 1.15  # an epoch may take so much longer than the last one


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
        seconds = math.inf if max_seconds is None else max_seconds
        if not _claim(todo, ledger, claims, begun + seconds, say):
            report.left.extend(todo)
            return report
        ledger.read_again()  # what other processes have finished before they gave it free
        missing = [
            run for run in todo if ledger.find(run, fingerprint=corpus.fingerprint) is before[run.hash]
        ]
        report.present.extend(run for run in todo if run not in missing)
        for group in _groups(missing):
            _train(group, corpus, ledger, device, begun, max_seconds, say, checkpoint_seconds, report)
    return report


def train_language(task: Task, library: Library, tell: Tell) -> Done:
    """Train one run by itself, as `sweep` wants it; its record is that of `sweep_language`."""
    run, corpus = task.run, library.data(task.run)
    protocol = run.protocol
    if not isinstance(protocol, LanguageProtocol) or not isinstance(corpus, Corpus):
        raise TypeError(f"{run.label}: no language model.")
    text = Text.of(corpus, protocol, library.device)
    masks = Masks(text, protocol, run.seed)
    seen = is_claimed(task.results, run.hash)
    training, saved = FleetTraining([run], text, masks, task.results), time.monotonic()
    tell(training.epoch, protocol.epochs, "")
    while not training.finished:
        train_epoch([training], masks)
        tell(training.epoch, protocol.epochs, describe([training]))
        if seen and time.monotonic() - saved >= CHECKPOINT_SECONDS:
            training.save()
            saved = time.monotonic()
    (record,) = training.records()
    notes = {**record.result["notes"], **task.notes}
    return Done(dataclasses.replace(record, result={**record.result, "notes": notes}))


def _claim(runs: list[Run], ledger: Ledger, claims: ExitStack, deadline: float, say: Say) -> bool:
    """Claim all runs, in an order in which two processes do not wait for each other."""
    for run in sorted(runs, key=lambda run: run.hash):
        claim = Claim(ledger.results, run.hash)
        if not claim.take():
            say(f"{run.label}: another process trains it, waiting")
            if not claim.take(deadline - time.monotonic()):
                return False
        claims.callback(claim.release)
    return True


def _train(
    runs: list[Run],
    corpus: Corpus,
    ledger: Ledger,
    device: torch.device,
    begun: float,
    max_seconds: float | None,
    say: Say,
    checkpoint_seconds: float,
    report: Report,
) -> None:
    """Train runs of one seed and protocol, their classes side by side."""
    protocol = runs[0].protocol
    if not isinstance(protocol, LanguageProtocol):
        raise TypeError(f"sweep_language: expected a LanguageProtocol, got {type(protocol).__name__}.")
    classes: dict[object, list[Run]] = {}
    for run in runs:
        alike = run.structure, run.init, run.init_std, run.gain, run.even, run.fixed
        classes.setdefault(alike, []).append(run)
    text = Text.of(corpus, protocol, device)
    masks = Masks(text, protocol, runs[0].seed)
    trainings = [FleetTraining(group, text, masks, ledger.results) for group in classes.values()]
    for one in trainings:
        say(f"{one.label}: {'goes on after epoch' if one.epoch else 'epoch'} {one.epoch}")
    saved, length = time.monotonic(), 0.0
    while waiting := [one for one in trainings if not one.finished]:
        started = time.monotonic()
        if max_seconds is not None and started - begun + _SLACK * length >= max_seconds:
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
        left = length * (protocol.epochs - lowest - 1)
        say(
            f"epoch {lowest + 1} of {protocol.epochs}, {length:.1f} s, about {left:.0f} s left, "
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


def _groups(runs: list[Run]) -> list[list[Run]]:
    """Runs that can be trained together: of one seed and protocol."""
    groups: dict[tuple[int, object], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.seed, run.protocol), []).append(run)
    return list(groups.values())
