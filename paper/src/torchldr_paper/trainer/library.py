"""The data of runs, and the device that they are trained on."""

from __future__ import annotations

import os

import torch

from .. import data as datasets
from ..data import Dataset
from ..data.text import Corpus, load_corpus
from ..ledger.ledger import Ledger
from ..ledger.records import Record
from ..protocol import Run
from .batches import Images


class Library:
    """Datasets, and their images on the device, loaded on first use; the last of each is kept.

    Args:
        device: where to train, also by name as `choose_device` takes it.
        data_dir: a data folder, see `torchldr_paper.data`.
    """

    def __init__(self, device: torch.device | str, data_dir: str | os.PathLike[str] | None = None) -> None:
        self.device, self.data_dir = choose_device(str(device)), data_dir
        self._dataset: tuple[str, Dataset | Corpus] | None = None
        self._images: tuple[object, Images] | None = None
        self._sources = {row.name: row.state for row in datasets.status(data_dir)}

    def source(self, name: str) -> str:
        """Which source a dataset of the registry would be loaded from; "user" for all else."""
        return self._sources.get(name, "user")

    def keep(self, name: str, dataset: Dataset | Corpus) -> None:
        """Take a dataset that need not be loaded any more."""
        if self._dataset is None or self._dataset[0] != name:
            self._dataset = name, dataset

    def data(self, run: Run) -> Dataset | Corpus:
        """The data of a run: a text for language models, else images.

        Raises:
            DatasetNotFoundError: where it is not here.
        """
        if self._dataset is None or self._dataset[0] != run.data:
            self._dataset = None  # before the next is loaded: two would need the memory of both
            load = load_corpus if run.model == "lstm" else datasets.load
            self._dataset = run.data, load(run.data, self.data_dir)
        return self._dataset[1]

    def images(self, run: Run) -> Images:
        """The images of a run on the device."""
        p, dataset = run.protocol, self.data(run)
        if not isinstance(dataset, Dataset):
            raise TypeError(f"{run.label}: its data is a text.")
        key = dataset.fingerprint, run.model, p.dtype, p.train_limit, p.test_limit
        if self._images is None or self._images[0] != key:
            self._images = None
            self._images = key, Images.of(dataset, run, self.device)
        return self._images[1]

    def find(self, run: Run, ledger: Ledger) -> Record | None:
        """The run's record on the data that it would be run on here."""
        source = self.source(run.data)
        if source == "absent":
            return ledger.find(run)
        if source == "user":
            return ledger.find(run, fingerprint=self.data(run).fingerprint)
        return ledger.find(run, source=source)


def choose_device(name: str = "auto") -> torch.device:
    """A device by name; "auto" is a GPU if there is one.

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
