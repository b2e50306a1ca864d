"""Background photographs for the MNIST-bg-rot stand-in.

They are read from the folder `backgrounds/` of a data folder: .png files, made grey, any size from
28 x 28. Where there are none, the photographs that ship with scikit-image serve if it is installed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from torchldr_paper.data.dataset import Array
from torchldr_paper.data.errors import DataFileError

FOLDER = "backgrounds"
# Those that scikit-image bundles (its others would be downloaded), all CC0 or public domain.
_BUNDLED = (
    "astronaut.png",
    "brick.png",
    "camera.png",
    "chelsea.png",
    "coffee.png",
    "coins.png",
    "grass.png",
    "gravel.png",
    "rocket.jpg",
)


def find_photographs(places: Sequence[Path]) -> list[Path]:
    """The photographs of the first place that has any, in the order of their names; maybe none."""
    for place in places:
        files = sorted((place / FOLDER).glob("*.png"))
        if files:
            return files
    spec = importlib.util.find_spec("skimage")  # located, not imported: it would take a second
    if spec is None or spec.origin is None:
        return []
    bundled = Path(spec.origin).parent / "data"
    return [bundled / name for name in _BUNDLED if (bundled / name).is_file()]


def read_photographs(files: Sequence[Path]) -> list[Array]:
    """Read pictures as grey bytes of shape (height, width).

    Raises:
        ImportError: without Pillow.
        DataFileError: for a file that is no picture, or is smaller than 28 x 28.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("reading photographs needs Pillow: pip install Pillow.") from error
    pictures = []
    for file in files:
        try:
            with Image.open(file) as picture:
                grey = np.asarray(picture.convert("L"))
        except Exception as error:  # Pillow's readers raise many classes on damage
            raise DataFileError(f"{file}: cannot be read as a picture ({error}).") from error
        if min(grey.shape) < 28:
            raise DataFileError(
                f"{file}: a photograph must have at least 28 x 28 pixels, got "
                f"{grey.shape[0]} x {grey.shape[1]}."
            )
        pictures.append(grey)
    return pictures


def draw_patches(
    photographs: Sequence[Array], count: int, side: int, texture: float, rng: np.random.Generator
) -> Array:
    """Draw square patches, (count, side, side): a photograph and a position, again while there is too little
    texture: a standard deviation, of pixels in [0, 1], below `texture`.

    Raises:
        ValueError: when no photograph has a patch of that texture.
    """
    usable = [patch_deviation(photograph, side) >= texture for photograph in photographs]
    if not any(good.any() for good in usable):
        raise ValueError(
            f"none of the {len(photographs)} photographs has a {side} x {side} patch with a "
            f"standard deviation of {texture * 255:.0f} of 255."
        )
    # To draw (photograph, position) until it will do is to draw a photograph in proportion to the
    # part of its positions that will do, then one of these: the same, without a loop.
    share = np.array([good.mean() for good in usable])
    which = rng.choice(len(photographs), size=count, p=share / share.sum())
    patches = np.empty((count, side, side), dtype=np.uint8)
    for index, photograph in enumerate(photographs):
        mine = np.flatnonzero(which == index)
        windows = np.lib.stride_tricks.sliding_window_view(photograph, (side, side))
        places = np.argwhere(usable[index])
        if len(mine):
            row, column = places[rng.integers(0, len(places), len(mine))].T
            patches[mine] = windows[row, column]
    return patches


def patch_deviation(photograph: Array, side: int) -> Array:
    """The standard deviation of every `side` x `side` patch, of pixels in [0, 1].

    Sums over patches are differences of cumulative sums, in integers and so exact. From (height, width) to
    (height - side + 1, width - side + 1), by the patch's upper left corner.
    """
    pixels = photograph.astype(np.int64)
    total, squares = _window_sums(pixels, side), _window_sums(pixels**2, side)
    area = side * side
    deviation: Array = np.sqrt(squares * area - total**2) / (area * 255)
    return deviation


def _window_sums(values: Array, side: int) -> Array:
    sums = np.zeros((values.shape[0] + 1, values.shape[1] + 1), dtype=np.int64)
    sums[1:, 1:] = values.cumsum(axis=0).cumsum(axis=1)
    window: Array = sums[side:, side:] - sums[:-side, side:] - sums[side:, :-side] + sums[:-side, :-side]
    return window
