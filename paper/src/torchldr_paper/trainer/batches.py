"""Data where it is trained on: tensors on a device, one split, and the order of the images.

Everything is drawn from the run's seed: which images validate, which train, and in which order each
epoch sees them. Replicas of a run share all of it, and an epoch's order depends on nothing but the
seed and its number, so an interrupted run goes on as if nothing had happened.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..data import Dataset
from ..protocol import Run

RECTANGLES_OUTPUTS = 10  # the paper's count of parameters has ten outputs on this set of two classes


def derived_seed(seed: int, *what: object) -> int:
    """A seed of its own for each use of a run's seed.

    >>> derived_seed(0, "split") == derived_seed(0, "order")
    False
    """
    digest = hashlib.sha256("/".join(map(str, (seed, *what))).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(seed: int, *what: object) -> torch.Generator:
    """A generator on the CPU, whose numbers are the same on every machine."""
    return torch.Generator().manual_seed(derived_seed(seed, *what))


@dataclass(frozen=True)
class Images:
    """A dataset's images, standardised, on a device: what all runs on it share.

    Attributes:
        name, source, fingerprint, image_shape: of the dataset.
        train_x, test_x: shape (n, pixels) for the SHL, (n, c, h, w) for the CNN.
        train_y, test_y: shape (n,), int64.
        outputs: how many classes the networks tell apart.
    """

    name: str
    source: str
    fingerprint: str
    image_shape: tuple[int, int, int]
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    outputs: int

    @classmethod
    def of(cls, dataset: Dataset, run: Run, device: torch.device | str = "cpu") -> Images:
        """The images for the runs of one model and dtype on a device, within the protocol's limits."""
        train, test = dataset.standardized(flat=run.model == "shl")
        dtype, p = getattr(torch, run.protocol.dtype), run.protocol
        papers = dataset.name == "rectangles" and dataset.source != "user"
        outputs = RECTANGLES_OUTPUTS if papers else dataset.classes
        return cls(
            name=dataset.name,
            source=dataset.source,
            fingerprint=dataset.fingerprint,
            image_shape=dataset.image_shape,
            train_x=torch.from_numpy(train[: p.train_limit]).to(device, dtype),
            train_y=torch.from_numpy(dataset.train_y[: p.train_limit]).to(device),
            test_x=torch.from_numpy(test[: p.test_limit]).to(device, dtype),
            test_y=torch.from_numpy(dataset.test_y[: p.test_limit]).to(device),
            outputs=outputs,
        )

    @property
    def device(self) -> torch.device:
        return self.train_x.device


@dataclass(frozen=True)
class Split:
    """Which training images train and which validate: row numbers, on the CPU."""

    train: Tensor
    validation: Tensor

    @classmethod
    def of(cls, run: Run, count: int) -> Split:
        """The split of `count` training images.

        The validation images are the same at every `train_fraction`, which counts in images of the
        whole set and is cut to what the validation leaves.

        Raises:
            ValueError: when one of the two sets would be empty.
        """
        validation = math.floor(run.protocol.validation * count)
        train = min(count - validation, math.floor(run.train_fraction * count))
        if not validation or not train:
            raise ValueError(
                f"{run.data}: {count} training images are too few for {run.protocol.validation:.0%} of "
                f"validation and a train_fraction of {run.train_fraction:g}."
            )
        rows = torch.randperm(count, generator=generator(run.seed, "split"))
        return cls(rows[validation : validation + train], rows[:validation])


class Feed:
    """The training rows in a new order every epoch, by a counter on the device.

    The last of an epoch's `sizes` of batches takes what is left.
    """

    def __init__(self, rows: Tensor, batch: int, seed: int) -> None:
        self.rows, self.seed = rows, seed
        self.order, self.position = rows.clone(), rows.new_zeros(())
        self.sizes = [len(part) for part in rows.split(batch)]
        self._offsets = torch.arange(batch, device=rows.device)

    def begin(self, epoch: int) -> None:
        """Bring an epoch's order to the device."""
        shuffle = torch.randperm(len(self.rows), generator=generator(self.seed, "order", epoch))
        self.order.copy_(self.rows[shuffle.to(self.rows.device)])
        self.position.zero_()

    def take(self, size: int) -> Tensor:
        """The next rows."""
        rows = self.order.index_select(0, self.position + self._offsets[:size])
        self.position.add_(size)
        return rows
