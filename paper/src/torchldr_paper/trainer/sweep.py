"""Many runs, one after the other: those that the ledger lacks, resumed where they were interrupted."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import data as datasets
from ..data import Dataset, DatasetNotFoundError
from ..ledger.ledger import Ledger
from ..ledger.records import Record
from ..ledger.weights import save_network, weights_path
from ..protocol import Run
from .batches import Images
from .checkpoint import CheckpointFile
from .logs import Log, no_log
from .progress import Progress, Silent
from .training import CHECKPOINT_SECONDS, train_run


@dataclass
class Report:
    """What a sweep did: the runs by what became of them, and why data is absent."""

    finished: list[Run] = field(default_factory=list)
    present: list[Run] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    left: list[Run] = field(default_factory=list)


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
) -> Report:
    """Run what the ledger lacks, each appended when it is finished.

    Args:
        runs: what to run, in this order; repetitions are run once.
        ledger: where finished runs are looked up and written.
        library: the data and the device.
        force: run even what is in the ledger.
        max_seconds: start no further run after this time.
        save_weights: keep the selected network of each run as `weights/<hash>.safetensors` beside the
            ledger; a run that is in the ledger without its weights is run again.
        progress: what to report to.
        log: called with every epoch's scores.
        checkpoint_seconds: see `train_run`.
        notes: what to add to the notes of each run's record.
        curves: see `train_run`.

    Returns:
        What became of each run. A dataset that is not here is reported, not raised.
    """
    begun, report = time.monotonic(), Report()
    shown = progress or Silent()
    for run in {run.hash: run for run in runs}.values():
        if run.data in report.absent:
            continue
        try:
            known = None if force else library.find(run, ledger)
            if known is not None and not (save_weights and not weights_path(ledger, run).is_file()):
                report.present.append(run)
                continue
            if max_seconds is not None and time.monotonic() - begun >= max_seconds:
                report.left.append(run)
                continue
            images = library.images(run)
        except DatasetNotFoundError as error:
            report.absent[run.data] = str(error)
            continue
        ledger.prepare()
        outcome = train_run(
            run,
            images,
            results=ledger.results,
            progress=shown,
            log=log,
            checkpoint_seconds=checkpoint_seconds,
            curves=curves,
        )
        outcome.notes.update(notes or {})
        if save_weights:
            save_network(weights_path(ledger, run), run, images, outcome)
        ledger.append(Record.of(run, images, outcome))
        CheckpointFile(ledger.results, run.hash, images.fingerprint).remove()
        report.finished.append(run)
    return report


def missing(runs: Sequence[Run], ledger: Ledger, library: Library) -> list[Run]:
    """The runs that a sweep would train: not in the ledger, and their data is here."""
    return [
        run
        for run in {run.hash: run for run in runs}.values()
        if library.source(run.data) != "absent" and library.find(run, ledger) is None
    ]
