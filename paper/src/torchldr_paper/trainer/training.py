"""Train one run from its first epoch, or from where it was interrupted, to its result."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..models.images import build_model, count_parameters
from ..protocol import Run
from .batches import Images
from .checkpoint import CheckpointFile
from .fleet import Fleet, Scores
from .progress import Log, Tell, no_log
from .rounding import flash_bytes, score_rounded
from .selection import Best, Mean, select_best, select_mean

_log = logging.getLogger("torchldr_paper")

CHECKPOINT_SECONDS = 2.0  # epochs shorter than this share a checkpoint
_KEPT = ("epoch", "diverged", "peaks", "curves", "seconds")  # of a training, besides its fleet


@dataclass(frozen=True)
class Outcome:
    """What a run gave.

    Attributes:
        metrics: "loss", "train", "validation", "test" and "validation_loss", each a row an epoch with
            an entry a replica; without curves "train" and "test" only where a replica's validation is best.
        best, mean: the selections, see `selection`; None where every replica diverged at once.
        diverged: for each replica the epoch in which it diverged, or None.
        parameters: as the paper counts them.
        seconds: wall time, over all sessions that it took.
        weights: state_dict of the best network, on the CPU.
        notes: what else is worth knowing, such as scores with rounded weights.
    """

    metrics: dict[str, list[list[float | None]]]
    best: Best | None
    mean: Mean | None
    diverged: list[int | None]
    parameters: int
    seconds: float
    weights: dict[str, Tensor]
    notes: dict[str, Any]


class _Training:
    """A fleet with its history."""

    def __init__(self, run: Run, images: Images, curves: bool = True) -> None:
        self.run, self.fleet, self.curves = run, Fleet(run, images), curves
        self.epoch = 0  # epochs done, those before pruning included
        self.history: list[Scores] = []
        self.diverged: list[int | None] = [None] * len(run.protocol.replicas)
        # Of each replica its best validation accuracy and that epoch, and its parameters there.
        self.peaks: list[tuple[float, int] | None] = [None] * len(run.protocol.replicas)
        self.best_rows = torch.zeros_like(self.fleet.flat, requires_grad=False)
        self.seconds = 0.0

    @property
    def finished(self) -> bool:
        return self.epoch >= self.run.epochs or not any(self.fleet.alive)

    def run_epoch(self) -> None:
        begun = time.perf_counter()
        fleet, keep = self.fleet, self.run.keep
        fleet.train_epoch(self.epoch)
        losses = fleet.finish_epoch()
        for index, alive in enumerate(fleet.alive):
            if not alive and self.diverged[index] is None:
                self.diverged[index] = self.epoch
        self.epoch += 1
        if keep is not None and self.epoch == self.run.protocol.epochs:
            fleet.prune(keep)
        elif keep is None or self.epoch > self.run.protocol.epochs:
            self.history.append(fleet.evaluate(losses, everything=self.curves))
            self._note_best(self.history[-1])
        self.seconds += time.perf_counter() - begun

    def _note_best(self, scores: Scores) -> None:
        for index, accuracy in enumerate(scores.validation):
            peak = self.peaks[index]
            if accuracy is None or (peak is not None and accuracy <= peak[0]):
                continue
            self.peaks[index] = accuracy, len(self.history) - 1
            self.best_rows[index].copy_(self.fleet.flat[index].detach())

    def save(self, file: CheckpointFile) -> None:
        state = {name: getattr(self, name) for name in _KEPT}
        state |= {"history": [score._asdict() for score in self.history], "alive": self.fleet.alive}
        file.save({**self.fleet.tensors(), "best": self.best_rows}, state)

    def resume(self, file: CheckpointFile) -> None:
        if (found := file.load()) is None:
            return
        tensors, state = found
        self.fleet.restore(tensors, state["alive"])
        self.best_rows.copy_(tensors["best"])
        for name in _KEPT:
            setattr(self, name, state[name])
        self.history = [Scores(**scores) for scores in state["history"]]

    def outcome(self) -> Outcome:
        if not self.curves:
            self._fill_in()
        names = Scores._fields
        metrics = {name: [_rounded(getattr(score, name)) for score in self.history] for name in names}
        replicas, images = self.run.protocol.replicas, self.fleet.images
        best = select_best(metrics, replicas)
        row = {} if best is None else self.fleet.replica_state(self.best_rows[best.replica], best.replica)
        model = build_model(self.run, images.image_shape, images.outputs)
        notes: dict[str, Any] = {}
        if self.run.weights is not None:
            begun, peaks = time.perf_counter(), [peak and peak[0] for peak in self.peaks]
            scores = score_rounded(self.run, self.fleet, self.best_rows, peaks)
            flash = flash_bytes(self.run, images.image_shape, images.outputs)
            notes[self.run.weights] = {**scores, "flash": flash}
            self.seconds += time.perf_counter() - begun
        return Outcome(
            metrics=metrics,
            best=best,
            mean=select_mean(metrics, replicas),
            diverged=self.diverged,
            parameters=count_parameters(model, self.run.keep, fixed=bool(self.run.fixed)),
            seconds=self.seconds,
            weights={name: tensor.cpu() for name, tensor in row.items()},
            notes=notes,
        )

    def _fill_in(self) -> None:
        """Training and test accuracies where the replicas' validation is best, all of them at once."""
        begun = time.perf_counter()
        scores = zip(*self.fleet.train_and_test(self.best_rows), strict=True)
        for index, ((train, test), peak) in enumerate(zip(scores, self.peaks, strict=True)):
            if peak is not None:
                row = self.history[peak[1]]
                row.train[index], row.test[index] = train, test
        self.seconds += time.perf_counter() - begun


def train_run(
    run: Run,
    images: Images,
    *,
    results: Path | None = None,
    tell: Tell = lambda epoch, total, note: None,
    log: Log = no_log,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    curves: bool = True,
) -> Outcome:
    """Train all replicas of a run together and select its result.

    Args:
        run: what to train.
        images: its data, on the device to train on.
        results: the folder whose `.checkpoints` keeps checkpoints; None keeps none. An interrupted run
            continues from the last one.
        tell: called when the run begins or continues, and after every epoch.
        log: called with every epoch's scores.
        checkpoint_seconds: save after each epoch, but not sooner than this after the last time.
        curves: score training and test images after every epoch; else only the networks with the best
            validation of each replica, which is faster and gives the same result.

    Returns:
        The outcome; the checkpoint stays until the caller removes it.
    """
    begun = time.perf_counter()
    training = _Training(run, images, curves)
    file = None if results is None else CheckpointFile(results, run.hash, images.fingerprint)
    if file is not None:
        training.resume(file)
    training.seconds += time.perf_counter() - begun
    tell(training.epoch, run.epochs, "")
    saved = time.monotonic()
    while not training.finished:
        training.run_epoch()
        if training.history:
            log(run, len(training.history) - 1, training.history[-1])
        known = [peak[0] for peak in training.peaks if peak is not None]
        none = "before pruning" if run.keep is not None else "diverged"
        tell(training.epoch, run.epochs, f"validation {max(known):.2f}" if known else none)
        if file is not None and time.monotonic() - saved >= checkpoint_seconds:
            try:
                training.save(file)
            except OSError as error:  # the run itself can still end well
                _log.warning("the checkpoint is not kept: %s", error)
            saved = time.monotonic()
    return training.outcome()


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """An outcome as JSON values, without the weights."""
    return {
        "parameters": outcome.parameters,
        "seconds": round(outcome.seconds, 2),
        "best": _rounded_fields(outcome.best),
        "mean": _rounded_fields(outcome.mean),
        "diverged": outcome.diverged,
        "notes": outcome.notes,
        "metrics": outcome.metrics,
    }


def _rounded(row: list[float | None]) -> list[float | None]:
    """Four digits hold an accuracy exactly; a loss that overflowed cannot be written as JSON."""
    return [round(value, 4) if value is not None and math.isfinite(value) else None for value in row]


def _rounded_fields(selected: Best | Mean | None) -> dict[str, Any] | None:
    if selected is None:
        return None
    fields = asdict(selected)
    return {k: round(v, 4) if isinstance(v, float) and k != "lr" else v for k, v in fields.items()}
