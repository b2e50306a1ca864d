"""The selected network of a run as a file beside the ledger: `weights/<hash>.safetensors`.

    torchldr train --data my.npz --structure ldr_sd --rank 2 --save-weights

    from torchldr_paper import load_network
    network = load_network("results/weights/0123456789abcdef.safetensors")

The file holds the state_dict and, as text, what the network is: nothing else is needed to build it.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from ..models.images import SingleHiddenLayer, build_model
from ..protocol import CONVOLUTIONS, Run
from ..trainer.batches import Images
from ..trainer.training import Outcome
from .ledger import Ledger
from .records import Record
from .tensors_file import Contents, read_tensors, write_tensors

FOLDER = "weights"
_ABOUT = {"run", "image_shape", "outputs"}


def weights_path(ledger: Ledger, run: Run) -> Path:
    """Where the selected network of a run is kept with `--save-weights`."""
    return ledger.results / FOLDER / f"{run.hash}.safetensors"


class Network(NamedTuple):
    """The selected network of a run, as a worker hands it to whoever writes: arrays travel anywhere."""

    weights: dict[str, NDArray[Any]]
    image_shape: tuple[int, int, int]
    outputs: int

    @classmethod
    def of(cls, images: Images, outcome: Outcome) -> Network:
        weights = {name: tensor.numpy() for name, tensor in outcome.weights.items()}
        return cls(weights, images.image_shape, images.outputs)


def save_network(path: Path, run: Run, network: Network) -> str:
    """Write the selected network of a finished run, whole or not at all; its checksum, for the ledger."""
    about = {"run": run.config(), "image_shape": network.image_shape, "outputs": network.outputs}
    # Copied: what came through shared memory cannot be written to, which torch warns of.
    tensors = {name: torch.tensor(array) for name, array in network.weights.items()}
    return write_tensors(path, tensors, about)


def read_network(path: str | os.PathLike[str], record: Record) -> Contents:
    """What the file of a run's selected network holds.

    Raises:
        ValueError: where the file cannot be read, is damaged, or is not the one that the ledger's line
            was written with.
    """
    contents = read_tensors(path)
    if record.weights is not None and record.weights != contents.checksum:
        raise ValueError(f"{path}: not the weights that the ledger has of {record.run.label}.")
    return contents


def load_network(path: str | os.PathLike[str], record: Record | None = None) -> SingleHiddenLayer:
    """The network of a file that `--save-weights` wrote, on the CPU and in evaluation mode.

    Its input is images (b, c, h, w), or rows for a single hidden layer, standardised as in training: with the
    mean and deviation of each pixel in the training set. Damage is noticed by a checksum; files of version
    0.1 have none.

    Raises:
        ValueError: where the file cannot be read, is damaged, does not say what it holds, or is not that of a
            record, where one is given.
    """
    tensors, about, _ = read_tensors(path) if record is None else read_network(path, record)
    if about.keys() != _ABOUT:
        raise ValueError(
            f"{path}: the file does not say which run it is of; --save-weights --force writes one that does."
        )
    numbers = sum(tensor.numel() for tensor in tensors.values())
    try:
        run, shape, outputs = _described(about)
        if record is not None and record.run != run:
            raise ValueError(f"it is {run.label}")
        # What it would need, before any of it is allocated; some classes cannot be built without numbers.
        _check_size(_least(run, shape, outputs), numbers)
        with contextlib.suppress(NotImplementedError), torch.device("meta"):
            planned = build_model(run, shape, outputs).state_dict()
            _check_size(sum(tensor.numel() for tensor in planned.values()), numbers)
        network = build_model(run, shape, outputs, torch.Generator())
        network.load_state_dict(tensors)
    except Exception as error:
        # The file's values reach every class, so any error means a bad file.
        raise ValueError(f"{path}: its weights are not those of the run that it names ({error}).") from error
    return network.eval()


def _described(about: Mapping[str, Any]) -> tuple[Run, tuple[int, int, int], int]:
    channels, height, width = about["image_shape"]
    sizes = channels, height, width, about["outputs"]
    if not all(type(size) is int and size > 0 for size in sizes):
        raise ValueError(f"image_shape and outputs must be positive integers, got {sizes}")
    return Run.from_config(about["run"]), (channels, height, width), about["outputs"]


def _least(run: Run, shape: tuple[int, int, int], outputs: int) -> int:
    """Parameters that a network has at least: every layer has one an input, and so many times its rank.

    Two factors of a Kronecker product have together at least the root of that.
    """
    channels, height, width = shape
    seen = channels * height * width
    if run.model == "cnn" or run.model in CONVOLUTIONS:
        seen = (height // 2) * (width // 2)
    elif run.model.startswith("channels"):  # a matrix for every pair of channels
        seen *= channels
    seen = math.isqrt(seen) if run.structure == "kronecker" else seen
    return max(channels, seen * (run.rank or 1), (run.hidden or 1) * outputs)


def _check_size(wanted: int, numbers: int) -> None:
    if wanted > numbers:
        raise ValueError(f"that has {wanted:,} numbers or more, the file {numbers:,}")
