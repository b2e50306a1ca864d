"""Recipes for stand-ins: data made from a seed if the official file is absent.

A stand-in has the size and the nature of the official data, not its images. Its numbers may be
compared with each other, never with the paper's. The same seed gives the same arrays: computed in
float64 and rounded to bytes, so that another machine's last bits do not change the fingerprint.

    rectangles  exact: the distribution measured on all 51,200 official images
    noise       digits under noise of a known covariance; the owner's covariances are not published,
                ours are `(1 - w) I + w K` with w = 0, .2, .4, .6, .8, 1 for levels 1 to 6
    bg_rot      rotated digits blended into patches of photographs; the owner's photographs, texture
                threshold, interpolation and way of combining are not published

Each function takes the numbers of training and test images and a seed, any integer from 0, and returns images
of shape (n, 1, 28, 28) in bytes with labels in int64. Digits are drawn from MNIST's training and test images
together, no digit for two images. Photographs are the .png files in the folder `backgrounds/` of a data
folder, made grey; without any, those that ship with scikit-image, if it is installed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import affine_grid, avg_pool2d, grid_sample

from torchldr_paper.data.dataset import Array, DataFileError, Splits

SIDE = 28
NOISE_SIGMA = 6.0  # width of the noise's Gaussian kernel, in pixels
TEXTURE = 20 / 255  # least standard deviation of a background patch
_ROWS = 2048  # images worked on at a time, so that temporaries stay in tens of megabytes


def rectangles(train: int, test: int, seed: int) -> Splits:
    """Rectangles: one-pixel outlines of 1 on 0, taller (label 1) or wider (label 0) than the other.

    Height and width are uniform on {4 .. 28}^2 subject to |height - width| >= 3, the position is
    uniform over all that fit, and the label is 1 exactly when height > width.
    """
    rng = np.random.default_rng([seed, 1])
    sides = np.arange(4, SIDE + 1)
    heights, widths = (grid.ravel() for grid in np.meshgrid(sides, sides, indexing="ij"))
    allowed = np.flatnonzero(np.abs(heights - widths) >= 3)
    pick = rng.choice(allowed, size=train + test)
    height, width = heights[pick], widths[pick]
    top = rng.integers(0, SIDE - height + 1)
    left = rng.integers(0, SIDE - width + 1)

    row_inside, row_edge = _extent(top, height)
    column_inside, column_edge = _extent(left, width)
    outline = row_edge[:, :, None] & column_inside[:, None, :]
    outline |= row_inside[:, :, None] & column_edge[:, None, :]
    return _parts(outline.astype(np.uint8) * np.uint8(255), (height > width).astype(np.int64), train)


def mnist_noise(mnist: Splits, level: int, train: int, test: int, seed: int) -> Splits:
    """MNIST-noise: the maximum of a digit and noise with uniform marginals.

    s ~ N(0, (1 - w) I + w K) with w = (level - 1) / 5 and K[p, q] = exp(-|p - q|^2 / (2 sigma^2))
    over pixel positions, sigma = 6; the noise is Phi(s), Phi the normal distribution function.
    Level 1 is white noise, level 6 smooth. One seed gives the same digits at every level, under
    noise made from the same normal numbers.
    """
    rng = np.random.default_rng([seed, 2])
    digits, y = _draw_digits(mnist, train + test, rng)
    w = (level - 1) / 5
    root = _kernel_root(SIDE, NOISE_SIGMA)
    x = np.empty_like(digits)
    for start in range(0, len(x), _ROWS):
        part = slice(start, start + _ROWS)
        white, smooth = rng.standard_normal((2, *digits[part].shape))
        # K is the Kronecker product of the two axes' kernels, so its root acts on rows and columns.
        s = np.sqrt(1 - w) * white + np.sqrt(w) * (root @ smooth @ root)
        noise = torch.special.ndtr(torch.from_numpy(s)).numpy()
        x[part] = np.maximum(digits[part], np.rint(255 * noise))
    return _parts(x, y, train)


def mnist_bg_rot(mnist: Splits, photographs: list[Array], train: int, test: int, seed: int) -> Splits:
    """MNIST-bg-rot: rotated digits, white on patches of photographs.

    Each digit is turned by an angle uniform on [0, 2 pi) (bilinear interpolation) and is the
    opacity of white over a 28 x 28 patch: pixel = digit + (1 - digit) patch. Patches are drawn
    uniformly, and again while their standard deviation is below 20 of 255. Photographs are grey bytes of
    shape (height, width), at least 28 x 28 each.
    """
    rng = np.random.default_rng([seed, 3])
    digits, y = _draw_digits(mnist, train + test, rng)
    angles = rng.uniform(0.0, 2 * np.pi, len(digits))
    x = draw_patches(photographs, len(digits), rng)
    for start in range(0, len(x), _ROWS):
        part = slice(start, start + _ROWS)
        alpha = rotate(digits[part] / 255, angles[part])
        x[part] = np.rint(255 * alpha + (1 - alpha) * x[part])
    return _parts(x, y, train)


def rotate(images: Array, angles: Array) -> Array:
    """Rotate square images about their centres, by bilinear interpolation.

    The value at a pixel is taken from where the pixel came from; beyond the image lies 0. Images (n, size,
    size) and angles (n,), counter-clockwise in radians, to (n, size, size) in float64.
    """
    cosine, sine = np.cos(angles), np.sin(angles)
    # Rows grow downwards, so a counter-clockwise turn is undone by these signs.
    back = torch.from_numpy(np.stack([[cosine, -sine, 0 * sine], [sine, cosine, 0 * sine]])).movedim(-1, 0)
    x = torch.from_numpy(np.asarray(images, dtype=np.float64)).unsqueeze(1)
    turned = grid_sample(x, affine_grid(back, list(x.shape), align_corners=True), align_corners=True)
    return turned.squeeze(1).numpy()


def _parts(x: Array, y: Array, train: int) -> Splits:
    """Images (n, 28, 28) with an axis for their channel, the first `train` of them for training."""
    return Splits(x[:train, None], y[:train], x[train:, None], y[train:])


def _extent(start: Array, length: Array) -> tuple[Array, Array]:
    """Which of the 28 positions lie in [start, start + length), and which at its two ends."""
    position = np.arange(SIDE)
    first, last = start[:, None], (start + length - 1)[:, None]
    inside = (position >= first) & (position <= last)
    return inside, (position == first) | (position == last)


def _draw_digits(mnist: Splits, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """`count` different digits of MNIST's in random order: bytes (n, 28, 28), labels int64."""
    x = np.concatenate([mnist.train_x, mnist.test_x])
    y = np.concatenate([mnist.train_y, mnist.test_y])
    if count > len(x):
        raise ValueError(f"{count} digits are asked for, MNIST here has {len(x)}.")
    pick = rng.permutation(len(x))[:count]
    return x[pick, 0], y[pick].astype(np.int64)


def _kernel_root(size: int, sigma: float) -> Array:
    """The symmetric square root of exp(-(i - j)^2 / (2 sigma^2)).

    Not a Cholesky factor: the matrix is singular in floating point, and an eigenvector's sign,
    which differs between machines, does not enter.
    """
    distance = np.subtract.outer(np.arange(size), np.arange(size))
    values, vectors = np.linalg.eigh(np.exp(-(distance**2) / (2 * sigma**2)))
    root: Array = (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T
    return root


FOLDER = "backgrounds"
# Those that scikit-image bundles (its others would be downloaded), all CC0 or public domain.
_BUNDLED = (
    "astronaut.png", "brick.png", "camera.png", "chelsea.png", "coffee.png", "coins.png", "grass.png",
    "gravel.png", "rocket.jpg",
)  # fmt: skip


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
        if min(grey.shape) < SIDE:
            raise DataFileError(
                f"{file}: a photograph must have at least 28 x 28 pixels, got "
                f"{grey.shape[0]} x {grey.shape[1]}."
            )
        pictures.append(grey)
    return pictures


def draw_patches(photographs: Sequence[Array], count: int, rng: np.random.Generator) -> Array:
    """Draw patches, (count, 28, 28): a photograph and a position, again while there is too little texture.

    Raises:
        ValueError: when no photograph has a patch of that texture.
    """
    usable = [patch_deviation(photograph) >= TEXTURE for photograph in photographs]
    if not any(good.any() for good in usable):
        raise ValueError(
            f"none of the {len(photographs)} photographs has a {SIDE} x {SIDE} patch with a "
            f"standard deviation of {TEXTURE * 255:.0f} of 255."
        )
    # Rejection of (photograph, position) draws a photograph in proportion to its share of suitable
    # positions, then one of these: this does the same without a loop.
    share = np.array([good.mean() for good in usable])
    which = rng.choice(len(photographs), size=count, p=share / share.sum())
    patches = np.empty((count, SIDE, SIDE), dtype=np.uint8)
    for index, photograph in enumerate(photographs):
        mine = np.flatnonzero(which == index)
        windows = np.lib.stride_tricks.sliding_window_view(photograph, (SIDE, SIDE))
        places = np.argwhere(usable[index])
        if len(mine):
            row, column = places[rng.integers(0, len(places), len(mine))].T
            patches[mine] = windows[row, column]
    return patches


def patch_deviation(photograph: Array) -> Array:
    """The standard deviation of every 28 x 28 patch, of pixels in [0, 1], by its upper left corner.

    Sums over patches are integers, which float64 holds exactly.
    """
    pixels, area = torch.from_numpy(photograph.astype(np.float64)), SIDE * SIDE
    total, squares = avg_pool2d(torch.stack((pixels, pixels**2)), SIDE, stride=1, divisor_override=1).numpy()
    deviation: Array = np.sqrt(squares * area - total**2) / (area * 255)
    return deviation
