"""Readers of the official file formats, from a binary stream to one array, and the datasets made of these.

A reader is given the shape that the header must announce, and the file's name for its messages. It
reads to the end of the stream and refuses one that is too short, too long or shaped otherwise, so
what it returns is whole. It never reads more than a file of that shape can have: a small compressed
file may hold a large one. `largest` says how much that is.

    idx    big-endian: 0, 0, type, number of dimensions; sizes; data  (MNIST)
    amat   text: a row of numbers a line, the label last              (Larochelle et al. 2007)
    cifar  rows of a label and 3 x 32 x 32 bytes, no header           (CIFAR-10, binary)
    norb   little-endian: type, number of dimensions; at least three sizes; data  (NORB)

The functions behind them make the four arrays of a dataset from the arrays of its files, in the registry's
order. Images come out with the shape (n, c, h, w): bytes where the owner publishes bytes, float32 in [0, 1]
elsewhere; labels int64.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import BinaryIO

import numpy as np

from torchldr_paper.data.dataset import Array, DataFileError, Splits

Shape = tuple[int, ...]
Reader = Callable[[BinaryIO, str, Shape], Array]

NORB_SIZE = 32  # NORB images are downsampled to NORB_SIZE x NORB_SIZE, as in the paper
_NORB_BYTES, _NORB_INTEGERS = 0x1E3D4C55, 0x1E3D4C54  # how a NORB matrix of these begins
_NUMBER = 64  # bytes that a number of an amat file may take; the owners' take 16 to 25
_HEADER = 1024  # bytes, more than any header has
_NORB_PAIRS = 512  # stereo pairs held at a time: 12 MB of a file's 680 MB


def read_idx(stream: BinaryIO, name: str, shape: Shape) -> Array:
    """Read an idx file of unsigned bytes; `shape` is (n, 28, 28) for images, (n,) for labels."""
    head = _exactly(stream, 4, name, "the idx header")
    if head[:2] != b"\0\0" or head[2] != 8:
        raise DataFileError(
            f"{name}: not an idx file of bytes (it begins with {head.hex(' ')}, expected 00 00 08)."
        )
    sizes = np.frombuffer(_exactly(stream, 4 * head[3], name, "the idx header"), dtype=">i4")
    _check_shape(name, tuple(sizes.tolist()), shape)
    return np.frombuffer(_body(stream, shape, 1, name), dtype=np.uint8).reshape(shape)


def read_cifar(stream: BinaryIO, name: str, shape: Shape) -> Array:
    """Read a batch of CIFAR-10's binary version; `shape` is (n, 3073), the label first."""
    return np.frombuffer(_body(stream, shape, 1, name), dtype=np.uint8).reshape(shape)


def read_amat(stream: BinaryIO, name: str, shape: Shape) -> Array:
    """Read rows of numbers in text; `shape` is (n, 785), the label last. Float32."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="loadtxt: input contained no data")
            rows = np.loadtxt(_rows(stream, name, shape), dtype=np.float32, comments="#", ndmin=2)
    except DataFileError:
        raise
    except (ValueError, UnicodeDecodeError) as error:
        reason = str(error).partition(";")[0]  # what follows is about loadtxt's own arguments
        raise DataFileError(
            f"{name}: not a table of {shape[1]} numbers a line, or cut short ({reason})."
        ) from error
    _check_shape(name, rows.shape, shape)
    if not np.isfinite(rows).all():
        raise DataFileError(f"{name}: holds a number that is not finite.")
    return rows


def _rows(stream: BinaryIO, name: str, shape: Shape) -> Iterator[bytes]:
    """The lines of a table with numbers in them, at most one too many, and none too long."""
    count, longest, left = 0, _HEADER + shape[1] * _NUMBER, largest(read_amat, shape)
    while count <= shape[0] and (line := stream.readline(longest)):
        left -= len(line)
        if len(line) == longest or left < 0:
            raise DataFileError(f"{name}: too long for a table of {_by(shape)} numbers.")
        if not line.strip() or line.lstrip().startswith(b"#"):
            continue
        if not count and (found := len(line.split())) != shape[1]:  # loadtxt holds the others against it
            raise DataFileError(
                f"{name}: not a table of {shape[1]} numbers a line, or cut short (its first has {found})."
            )
        count += 1
        yield line


def read_norb_labels(stream: BinaryIO, name: str, shape: Shape) -> Array:
    """Read a NORB "-cat" matrix of 32-bit integers; `shape` is (n,)."""
    _norb_header(stream, name, shape, _NORB_INTEGERS, "int32")
    return np.frombuffer(_body(stream, shape, 4, name), dtype="<i4").reshape(shape)


def read_norb_left(stream: BinaryIO, name: str, shape: Shape) -> Array:
    """Read the left images of a NORB "-dat" matrix and downsample them.

    `shape` is (n, 2, size, size): stereo pairs, the left camera first. Each image is averaged over
    the areas of a 32 x 32 grid (a source pixel that straddles a border counts by the part on each
    side; from 96 x 96 these are plain means of 3 x 3) and rounded to a byte. The file goes through
    memory in pieces.

    Returns:
        Bytes of shape (n, 32, 32).
    """
    _norb_header(stream, name, shape, _NORB_BYTES, "uint8")
    count, _, size, _ = shape
    average = area_average(size, NORB_SIZE).astype(np.float32)
    images = np.empty((count, NORB_SIZE, NORB_SIZE), dtype=np.uint8)
    for start in range(0, count, _NORB_PAIRS):
        pairs = min(_NORB_PAIRS, count - start)
        piece = _exactly(stream, pairs * 2 * size * size, name, f"pairs {start} and on of {count}")
        left = np.frombuffer(piece, dtype=np.uint8).reshape(pairs, 2, size, size)[:, 0]
        small = average @ left.astype(np.float32) @ average.T
        images[start : start + pairs] = np.rint(small)
    _at_end(stream, name)
    return images


_BYTES: dict[Reader, int] = {
    read_idx: 1,
    read_amat: _NUMBER,
    read_cifar: 1,
    read_norb_labels: 4,
    read_norb_left: 1,
}


def largest(read: Reader, shape: Shape) -> int:
    """Bytes that a file of this format and shape has at most."""
    return _HEADER + math.prod(shape) * _BYTES[read]


def area_average(size: int, target: int) -> Array:
    """The (target, size) matrix that averages `size` pixels over `target` equal areas.

    >>> area_average(3, 2).round(3).tolist()
    [[0.667, 0.333, 0.0], [0.0, 0.333, 0.667]]
    """
    edges = np.arange(target + 1) * (size / target)
    pixels = np.arange(size)
    overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    weights: Array = np.clip(overlap, 0.0, None) * (target / size)
    return weights


def _norb_header(stream: BinaryIO, name: str, shape: Shape, expected: int, kind: str) -> None:
    magic, dimensions = np.frombuffer(_exactly(stream, 8, name, "the matrix header"), "<u4").tolist()
    if magic != expected:
        raise DataFileError(f"{name}: not a NORB matrix of {kind} (magic number {magic:#010x}).")
    # The format always stores at least three sizes, the unused ones being 1.
    stored = max(3, dimensions) if dimensions <= 8 else 3
    sizes = np.frombuffer(_exactly(stream, 4 * stored, name, "the matrix header"), "<i4")
    _check_shape(name, tuple(sizes[:dimensions].tolist()), shape)


def _check_shape(name: str, got: Shape, expected: Shape) -> None:
    if got != expected:
        raise DataFileError(
            f"{name}: expected {_by(expected)} values, got {_by(got)}; it is another file or is incomplete."
        )


def _body(stream: BinaryIO, shape: Shape, item: int, name: str) -> bytes:
    """All that is left of the stream, which must be an array of `shape`."""
    expected = math.prod(shape) * item
    data = stream.read(expected)
    if len(data) != expected:
        raise DataFileError(
            f"{name}: truncated: expected {expected:,} bytes of data ({_by(shape)}), got {len(data):,}."
        )
    _at_end(stream, name)
    return data


def _exactly(stream: BinaryIO, count: int, name: str, what: str) -> bytes:
    data = stream.read(count)
    if len(data) != count:
        raise DataFileError(f"{name}: truncated in {what}: expected {count:,} bytes, got {len(data):,}.")
    return data


def _at_end(stream: BinaryIO, name: str) -> None:
    if stream.read(1):
        raise DataFileError(f"{name}: too long: there is data after the last of its numbers.")


def _by(shape: Shape) -> str:
    return " x ".join(map(str, shape)) if shape else "no"


def pairs(parts: list[Array], train: int = 1) -> Splits:
    """Images and labels in turn: `train` pairs for training, then those for the test (MNIST, NORB)."""
    return Splits(*_joined(parts[: 2 * train]), *_joined(parts[2 * train :]))


def amat_pair(parts: list[Array]) -> Splits:
    """A training and a test table of 784 pixels and a label, images stored by rows."""
    train, test = map(_table, parts)
    return Splits(*train, *test)


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
    return Splits(*_coloured(np.concatenate(parts[:-1])), *_coloured(parts[-1]))


def cifar10_grey(parts: list[Array]) -> Splits:
    """CIFAR-10 with one channel, the mean of red, green and blue, in float32."""
    train_x, train_y, test_x, test_y = cifar10(parts)
    return Splits(_grey(train_x), train_y, _grey(test_x), test_y)


def _joined(parts: list[Array]) -> tuple[Array, Array]:
    """Images of shape (n, 1, h, w) and labels from files that hold them in turn."""
    return np.concatenate(parts[0::2])[:, None], np.concatenate(parts[1::2]).astype(np.int64)


def _coloured(rows: Array) -> tuple[Array, Array]:
    """Images of shape (n, 3, 32, 32) and labels from rows of a label and 3072 pixels."""
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)


def _table(rows: Array) -> tuple[Array, Array]:
    """Images of shape (n, 1, 28, 28) and labels from rows of 784 pixels and a label."""
    labels = rows[:, -1]
    # A label that is no whole number becomes -1, which the check of the labels' range refuses.
    whole = np.where(labels == np.rint(labels), labels, -1)
    return np.ascontiguousarray(rows[:, :-1]).reshape(-1, 1, 28, 28), whole.astype(np.int64)


def _grey(x: Array) -> Array:
    grey: Array = x.sum(axis=1, keepdims=True, dtype=np.uint16) / np.float32(3 * 255)
    return grey


def _bytes(x: Array) -> Array:
    """Zeros and ones as bytes; anything in between stays as it is."""
    return (x * 255).astype(np.uint8) if bool(np.isin(x, (0, 1)).all()) else x
