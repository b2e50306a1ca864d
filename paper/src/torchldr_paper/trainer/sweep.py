"""Many runs, one after the other: those that the ledger lacks, resumed where they were interrupted.

Several processes may sweep over one ledger: each claims the run that it trains, see `claims`.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import data as datasets
from ..data import Dataset, DatasetNotFoundError
from ..ledger.claims import Claim
from ..ledger.ledger import Ledger
from ..ledger.records import Record
from ..ledger.weights import read_network, save_network, weights_path
from ..protocol import Run
from .batches import Images
from .checkpoint import CheckpointFile
from .logs import Log, no_log
from .progress import Progress, Silent
from .training import CHECKPOINT_SECONDS, Outcome, train_run

_log = logging.getLogger("torchldr_paper")


@dataclass
class Report:
    """What a sweep did.

    Attributes:
        finished: runs that were trained.
        present: runs that the ledger has, also those that another process trained meanwhile.
        absent: why data is not here, by its name.
        left: runs for which the time did not suffice.
        claimed: runs that another process trains, where they were not waited for.
        unsaved: why weights of finished runs could not be written, by the runs' labels.
    """

    finished: list[Run] = field(default_factory=list)
    present: list[Run] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    left: list[Run] = field(default_factory=list)
    claimed: list[Run] = field(default_factory=list)
    unsaved: dict[str, str] = field(default_factory=dict)


class Library:
    """Datasets, and their images on the device, loaded when asked for; the last of each is kept."""

    def __init__(self, device: torch.device, data_dir: str | os.PathLike[str] | None = None) -> None:
        self.device, self.data_dir = device, data_dir
        self._dataset: tuple[str, Dataset] | None = None
        self._images: tuple[object, Images] | None = None
        self._sources = {row.name: row.state for row in datasets.status(data_dir)}

    def source(self, name: str) -> str:
        """Which source a dataset of the registry would be loaded from; "user" for a file."""
        return self._sources.get(name, "user")

    def dataset(self, name: str) -> Dataset:
        if self._dataset is None or self._dataset[0] != name:
            self._dataset = name, datasets.load(name, self.data_dir)
        return self._dataset[1]

    def images(self, run: Run) -> Images:
        p = run.protocol
        key = run.data, run.model, p.dtype, p.train_limit, p.test_limit
        if self._images is None or self._images[0] != key:
            self._images = None  # before the next is made: two would need the memory of both
            self._images = key, Images.of(self.dataset(run.data), run, self.device)
        return self._images[1]

    def find(self, run: Run, ledger: Ledger) -> Record | None:
        """The run's record on the data that it would be run on here."""
        source = self.source(run.data)
        if source == "absent":
            return ledger.find(run)
        if source == "user":
            return ledger.find(run, fingerprint=self.dataset(run.data).fingerprint)
        return ledger.find(run, source=source)


def choose_device(name: str = "auto") -> torch.device:
    """A device by name; "auto" is a GPU where there is one.

    Raises:
        ValueError: for a name that torch does not know, or a GPU that is not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"unknown device {name!r}; known are auto, cpu, cuda, cuda:0, ...") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"the device {name!r} is not here: torch finds no GPU.")
    # With a number, as tensors say where they are.
    return torch.device(f"cuda:{torch.cuda.current_device()}") if name == "cuda" else device


def sweep(
    runs: Iterable[Run],
    ledger: Ledger,
    library: Library,
    *,
    force: bool = False,
    max_seconds: float | None = None,
    save_weights: bool = False,
    progress: Progress | None = None,
    log: Log = no_log,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    notes: Mapping[str, Any] | None = None,
    curves: bool = True,
    wait: bool = True,
) -> Report:
    """Run what the ledger lacks, each appended when it is finished.

    A run that another process trains is left to it and looked at again in the end: by then it is in the
    ledger, or its process has died and it is trained here.

    Args:
        runs: what to run, in this order; repetitions are run once.
        ledger: where finished runs are looked up and written.
        library: the data and the device.
        force: run even what is in the ledger.
        max_seconds: start no further run after this time.
        save_weights: keep the selected network of each run as `weights/<hash>.safetensors` beside the
            ledger; a run that is in the ledger without its weights, or with damaged ones, is run again.
        progress: what to report to.
        log: called with every epoch's scores.
        checkpoint_seconds: see `train_run`.
        notes: what to add to the notes of each run's record.
        curves: see `train_run`.
        wait: for other processes; else their runs are reported as claimed.

    Returns:
        What became of each run. A dataset that is not here is reported, not raised; so are weights that
        cannot be written, for the run's record can.
    """
    options = {
        "progress": progress or Silent(),
        "log": log,
        "checkpoint_seconds": checkpoint_seconds,
        "curves": curves,
    }
    seconds = math.inf if max_seconds is None else max_seconds
    work = _Sweep(ledger, library, force, save_weights, time.monotonic() + seconds, notes or {}, options)
    for run in {run.hash: run for run in runs}.values():
        work.visit(run)
    report = work.report
    while wait and report.claimed:
        run = report.claimed.pop(0)
        _log.warning("%s: another process trains it, waiting", run.label)
        work.visit(run, wait=True)
    return report


class _Sweep:
    """A sweep under way; `sweep` says what the arguments are."""

    def __init__(
        self,
        ledger: Ledger,
        library: Library,
        force: bool,
        save_weights: bool,
        deadline: float,
        notes: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        self.ledger, self.library, self.force, self.save_weights = ledger, library, force, save_weights
        self.deadline, self.notes, self.options = deadline, notes, options
        self.report = Report()
        self._before: dict[str, Record | None] = {}  # what the ledger had when this sweep came to a run

    def visit(self, run: Run, *, wait: bool = False) -> None:
        """Bring a run into the ledger, unless another process is at it or the time is over."""
        if run.data in self.report.absent:
            return
        try:
            known = self._before.setdefault(run.hash, self.library.find(run, self.ledger))
            if not self.force and self._complete(run, known):
                self.report.present.append(run)
                return
            if time.monotonic() >= self.deadline:
                self.report.left.append(run)
                return
            images = self.library.images(run)
        except DatasetNotFoundError as error:
            self.report.absent[run.data] = str(error)
            return
        self.ledger.prepare()
        claim = Claim(self.ledger.results, run.hash)
        if not claim.take(self.deadline - time.monotonic() if wait else 0.0):
            (self.report.left if wait else self.report.claimed).append(run)
            return
        try:
            self._train(run, images)
        finally:
            claim.release()

    def _train(self, run: Run, images: Images) -> None:
        """Train a run that is claimed, unless the process that had it before has finished it."""
        self.ledger.read_again()
        found = self.library.find(run, self.ledger)
        if found is not self._before[run.hash] and self._complete(run, found):
            self.report.present.append(run)
            return
        outcome = train_run(run, images, results=self.ledger.results, **self.options)
        outcome.notes.update(self.notes)
        weights = self._save_weights(run, images, outcome) if self.save_weights else None
        self.ledger.append(Record.of(run, images, outcome, weights))
        CheckpointFile(self.ledger.results, run.hash, images.fingerprint).remove()
        self.report.finished.append(run)

    def _save_weights(self, run: Run, images: Images, outcome: Outcome) -> str | None:
        """The checksum of the weights, None where they cannot be written: the record still can."""
        try:
            return save_network(weights_path(self.ledger, run), run, images, outcome)
        except OSError as error:
            self.report.unsaved[run.label] = str(error)
            return None

    def _complete(self, run: Run, record: Record | None) -> bool:
        """Whether a run is in the ledger, with its weights where those are wanted."""
        if record is None or not self.save_weights:
            return record is not None
        path = weights_path(self.ledger, run)
        if not path.is_file():
            return False
        try:
            read_network(path, record)
        except ValueError as error:
            _log.warning("the weights cannot be used, the run starts anew: %s", error)
            return False
        return True


def missing(runs: Sequence[Run], ledger: Ledger, library: Library) -> list[Run]:
    """The runs that a sweep would train: not in the ledger, and their data is here."""
    return [
        run
        for run in {run.hash: run for run in runs}.values()
        if library.source(run.data) != "absent" and library.find(run, ledger) is None
    ]
