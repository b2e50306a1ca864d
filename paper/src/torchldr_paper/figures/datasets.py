"""Examples of the datasets that can be loaded here, each called official or a stand-in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchldr.pictures import PLAIN, NothingToDrawError, Picture, bare, new_figure, styled

from .. import data as datasets
from ..data import DataFileError
from ..data.dataset import as_pixels
from .names import dataset_title, source_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 12
DataDir = str | os.PathLike[str] | None


@styled
def examples(data_dir: DataDir = None, names: list[str] | None = None) -> Picture:
    """A row of training images of every dataset that is here or can be made here.

    Args:
        data_dir: a data folder, see `torchldr_paper.data`.
        names: which datasets; those that can be loaded by default.

    Raises:
        NothingToDrawError: where none can be loaded.
    """
    if names is None:
        names = [row.name for row in datasets.status(data_dir) if row.state != "absent"]
    rows, damaged = [], []
    for name in names:
        try:
            data = datasets.load(name, data_dir)
            rows.append((name, data.source, as_pixels(data.train_x[choose(data.train_y, COLUMNS)])))
            del data  # before the next is loaded: two would need the memory of both
        except DataFileError:
            damaged.append(name)
    if not rows:
        raise NothingToDrawError(
            "no dataset is here and none can be made; see what is missing with: torchldr data list"
        )
    figure, axes = new_figure(9.6, 0.72 * len(rows) + 0.1, len(rows), COLUMNS)
    for line, (name, source, images) in zip(axes, rows, strict=True):
        for ax in line:
            ax.axis("off")
        for ax, image in zip(line, images, strict=False):
            ax.axis("on")
            show_image(ax, image)
        line[0].set_ylabel(
            f"{dataset_title(name)}\n({source_title(source)})",
            rotation=0, ha="right", va="center", fontsize=8, labelpad=6,
        )  # fmt: skip
    made = [dataset_title(name) for name, source, _ in rows if source == "stand-in"]
    which = "Every one is official." if not made else f"Stand-ins, made from a seed: {'; '.join(made)}."
    which += f" Files that cannot be read: {', '.join(damaged)}." if damaged else ""
    return Picture(
        "examples",
        "Examples of the datasets",
        f"Training images, the classes in turn, before standardisation. {which}",
        figure,
        datasets=tuple(name for name, _, _ in rows),
    )


def choose(labels: NDArray[Any], count: int) -> list[int]:
    """Indices of `count` examples: the first of each class in turn, then the second, and so on.

    >>> choose(np.array([0, 0, 0, 1, 1]), 4)
    [0, 3, 1, 4]
    """
    places = [np.flatnonzero(labels == label)[:count] for label in np.unique(labels)]
    turns = [int(place[turn]) for turn in range(count) for place in places if turn < len(place)]
    return turns[:count]


def show_image(ax: Axes, image: NDArray[Any]) -> None:
    """Draw one image of shape (channels, height, width): three channels are colours.

    Colours are stretched to [0, 1] where they do not lie there: a user's own floats.
    """
    if image.shape[0] == 3:
        low, high = float(image.min()), float(image.max())
        if low < 0 or high > 1:
            image = (image - low) / max(high - low, 1e-12)
        ax.imshow(np.moveaxis(image, 0, -1), interpolation="nearest")
    else:
        ax.imshow(image[0], cmap=PLAIN, interpolation="nearest")
    bare(ax)
