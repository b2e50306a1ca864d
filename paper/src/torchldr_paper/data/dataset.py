"""The `Dataset` that every loader returns, and the standardisation of its pixels."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray


class DataFileError(ValueError):
    """A data file is truncated, corrupt, of the wrong shape or fails its checksum.

    The message names the file, what was expected and what came.
    """


class DatasetNotFoundError(FileNotFoundError):
    """No file of a dataset is present and it cannot be made here.

    The message says which file to put where, and where its owner offers it.
    """


class DownloadError(OSError):
    """A download failed."""


Array = NDArray[Any]
Source = Literal["official", "stand-in", "user"]

_ROWS = 2048  # rows converted at a time: statistics of CIFAR-10 need 50 MB, not 1.2 GB


class Splits(NamedTuple):
    """The four arrays of a dataset: images of shape (n, c, h, w), labels of shape (n,)."""

    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A classification dataset held in memory.

    Attributes:
        name: the registry's name, or the file's stem for a user's own data.
        train_x: training images, shape (n, c, h, w); `uint8` means value / 255, `float32` is kept.
        train_y: training labels 0 .. classes - 1, shape (n,), int64.
        test_x: test images, as `train_x`.
        test_y: test labels, as `train_y`.
        image_shape: (channels, height, width).
        classes: the number of classes.
        source: "official", "stand-in" (made from a seed by a recipe) or "user".
        fingerprint: sha256 of the four arrays; equal data has an equal fingerprint anywhere.
        origin: where it came from, in words: a folder, a recipe and its seed, a file.
    """

    name: str
    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array
    image_shape: tuple[int, int, int]
    classes: int
    source: Source
    fingerprint: str
    origin: str = field(default="")

    @classmethod
    def of(cls, splits: Splits, digest: str | None = None, **facts: Any) -> Dataset:
        """The dataset of four arrays, whose fingerprint is computed where it is not known."""
        return cls(**splits._asdict(), fingerprint=digest or fingerprint(splits), **facts)

    @property
    def features(self) -> int:
        """Numbers in one flattened image, c * h * w."""
        c, h, w = self.image_shape
        return c * h * w

    def pixels(self, *, flat: bool = False) -> tuple[Array, Array]:
        """Training and test images as float32, bytes scaled to [0, 1]; rows when `flat`."""
        train, test = as_pixels(self.train_x), as_pixels(self.test_x)
        return (_rows(train), _rows(test)) if flat else (train, test)

    def standardized(self, *, flat: bool = False) -> tuple[Array, Array]:
        """Training and test images, standardised per pixel and channel; see `standardize`."""
        train, test = standardize(self.train_x, self.test_x)
        return (_rows(train), _rows(test)) if flat else (train, test)

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.image_shape))
        sizes = f"{len(self.train_y)} + {len(self.test_y)}"
        return (
            f"Dataset({self.name!r}, {self.source}, {sizes} images of {shape}, "
            f"{self.classes} classes, fingerprint {self.fingerprint[:12]})"
        )


def as_pixels(x: Array) -> Array:
    """Images as float32: bytes divided by 255, anything else converted as it is.

    Args:
        x: images of any shape.

    Returns:
        The same shape in float32; `x` itself where it is float32 already.
    """
    if x.dtype == np.uint8:
        return x.astype(np.float32) / np.float32(255)
    return x.astype(np.float32, copy=False)


def standardize(train: Array, *others: Array) -> tuple[Array, ...]:
    """Subtract the training set's mean and divide by its deviation, pixel by pixel.

    Every entry of an image (pixel and channel) has a mean and a deviation of its own, over the
    training images, with the population's divisor n. Entries that never vary in training keep the
    divisor 1.

    Args:
        train: training images, shape (n, ...).
        others: further images to treat with the same statistics, each of shape (m, ...).

    Returns:
        `train` and each of `others`, float32.
    """
    chunks = [slice(start, start + _ROWS) for start in range(0, len(train), _ROWS)]
    mean = sum(as_pixels(train[rows]).sum(axis=0, dtype=np.float64) for rows in chunks) / len(train)
    squares = sum(np.square(as_pixels(train[rows]) - mean).sum(axis=0) for rows in chunks)
    deviation = np.sqrt(squares / len(train))
    # Compared exactly: rounding in the mean gives a constant pixel a tiny deviation, not none.
    deviation[train.max(axis=0) == train.min(axis=0)] = 1.0
    shift, scale = mean.astype(np.float32), (1.0 / deviation).astype(np.float32)
    results = []
    for x in (train, *others):
        out = np.array(as_pixels(x))  # a copy: float32 input comes back as the caller's own array
        out -= shift
        out *= scale
        results.append(out)
    return tuple(results)


def fingerprint(splits: Splits) -> str:
    """Sha256 over the names, types, shapes and bytes of the four arrays, as hexadecimal."""
    digest = hashlib.sha256()
    for name, array in zip(splits._fields, splits, strict=True):
        portable = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        digest.update(f"{name} {portable.dtype.str} {portable.shape}\n".encode())
        digest.update(portable.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _rows(x: Array) -> Array:
    return x.reshape(len(x), -1)
