"""From the parsed official files of a dataset to its four arrays.

Each function takes the arrays of the files in the registry's order. Images come out with the shape
(n, c, h, w): bytes where the owner publishes bytes, float32 in [0, 1] elsewhere; labels int64.
"""

from __future__ import annotations

import numpy as np

from torchldr_paper.data.dataset import Array, Splits


def pairs(parts: list[Array], train: int = 1) -> Splits:
    """Images and labels in turn: `train` pairs for training, then those for the test (MNIST, NORB)."""
    x, y = parts[0::2], parts[1::2]
    return Splits(
        np.concatenate(x[:train])[:, None],
        _labels(np.concatenate(y[:train])),
        np.concatenate(x[train:])[:, None],
        _labels(np.concatenate(y[train:])),
    )


def amat_pair(parts: list[Array]) -> Splits:
    """A training and a test table of 784 pixels and a label, images stored by rows."""
    train, test = parts
    return Splits(*_table(train), *_table(test))


def rectangles(parts: list[Array]) -> Splits:
    """Rectangles: `amat_pair` with its zeros and ones kept as bytes."""
    train_x, train_y, test_x, test_y = amat_pair(parts)
    return Splits(_bytes(train_x), train_y, _bytes(test_x), test_y)


def mnist_noise(parts: list[Array], test: int = 2000) -> Splits:
    """MNIST-noise: one table, the last `test` rows for testing, images stored by columns."""
    x, y = _table(parts[0])
    x = np.ascontiguousarray(x.swapaxes(2, 3))
    return Splits(x[:-test], y[:-test], x[-test:], y[-test:])


def cifar10(parts: list[Array]) -> Splits:
    """CIFAR-10: five training batches and a test batch of rows (label, red, green, blue)."""
    train, test = np.concatenate(parts[:-1]), parts[-1]
    return Splits(
        train[:, 1:].reshape(-1, 3, 32, 32),
        _labels(train[:, 0]),
        test[:, 1:].reshape(-1, 3, 32, 32),
        _labels(test[:, 0]),
    )


def cifar10_grey(parts: list[Array]) -> Splits:
    """CIFAR-10 with one channel, the mean of red, green and blue, in float32."""
    train_x, train_y, test_x, test_y = cifar10(parts)
    return Splits(_grey(train_x), train_y, _grey(test_x), test_y)


def _table(rows: Array) -> tuple[Array, Array]:
    """Images of shape (n, 1, 28, 28) and labels from rows of 784 pixels and a label."""
    labels = rows[:, -1]
    # A label that is no whole number becomes -1, which the check of the labels' range refuses.
    whole = np.where(labels == np.rint(labels), labels, -1)
    return np.ascontiguousarray(rows[:, :-1]).reshape(-1, 1, 28, 28), _labels(whole)


def _grey(x: Array) -> Array:
    grey: Array = x.sum(axis=1, keepdims=True, dtype=np.uint16) / np.float32(3 * 255)
    return grey


def _bytes(x: Array) -> Array:
    """Zeros and ones as bytes; anything in between stays as it is."""
    return (x * 255).astype(np.uint8) if bool(np.isin(x, (0, 1)).all()) else x


def _labels(y: Array) -> Array:
    return y.astype(np.int64)
