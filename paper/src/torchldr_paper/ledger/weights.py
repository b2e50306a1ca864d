"""The selected network of a run as a file beside the ledger: `weights/<hash>.safetensors`.

    torchldr train --data my.npz --structure ldr_sd --rank 2 --save-weights

    from torchldr_paper import load_network
    network = load_network("results/weights/0123456789abcdef.safetensors")

The file holds the state_dict and, as text, what the network is: nothing else is needed to build it.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from ..models.images import SingleHiddenLayer, build_model
from ..protocol import Run
from ..trainer.batches import Images
from ..trainer.training import Outcome
from .ledger import Ledger
from .tensors_file import read_tensors, write_tensors

FOLDER = "weights"


def weights_path(ledger: Ledger, run: Run) -> Path:
    """Where the selected network of a run is kept, if it was asked for."""
    return ledger.results / FOLDER / f"{run.hash}.safetensors"


def save_network(path: Path, run: Run, images: Images, outcome: Outcome) -> None:
    """Write the selected network of a finished run, whole or not at all."""
    about = {"run": run.config(), "image_shape": images.image_shape, "outputs": images.outputs}
    write_tensors(path, outcome.weights, about)


def load_network(path: str | os.PathLike[str]) -> SingleHiddenLayer:
    """The network of a file that `--save-weights` wrote, on the CPU and in evaluation mode.

    Its input is images (b, c, h, w), or rows for a single hidden layer, standardised as in training: with the
    mean and deviation of each pixel in the training set.

    Raises:
        ValueError: where the file cannot be read or does not say what it holds.
    """
    tensors, about = read_tensors(path)
    if not {"run", "image_shape", "outputs"} <= about.keys():
        raise ValueError(
            f"{path}: the file does not say which run it is of; --save-weights --force writes one that does."
        )
    channels, height, width = about["image_shape"]
    run = Run.from_config(about["run"])
    network = build_model(run, (channels, height, width), about["outputs"], torch.Generator())
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise ValueError(f"{path}: not the weights of {run.label} ({error}).") from error
    return network.eval()
