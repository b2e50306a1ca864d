"""Tiny data: rectangles of 28 x 28 from the recipe, and the same drawn small."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from torchldr_paper import Protocol
from torchldr_paper.data import Dataset, recipes
from torchldr_paper.data.dataset import Splits, fingerprint
from torchldr_paper.ledger import ledger
from torchldr_paper.ledger.records import Record


@pytest.fixture(scope="session", autouse=True)
def published_once() -> Iterator[None]:
    """The 13 MB of the published ledger are read once, not by every `Ledger()`; records do not change."""
    published, read = ledger._published, Record.from_line
    files, parsed = cache(lambda: [*published()]), cache(read)

    @cache
    def lines() -> frozenset[str]:
        return frozenset(line for _, text in files() for line in text.split("\n"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "_published", lambda: files())
        patch.setattr(
            Record, "from_line", lambda line, **kept: (parsed if line in lines() else read)(line, **kept)
        )
        yield


def as_dataset(splits: Splits, name: str = "rectangles") -> Dataset:
    shape = splits.train_x.shape[1:]
    return Dataset(
        name=name,
        **splits._asdict(),
        image_shape=(shape[0], shape[1], shape[2]),
        classes=2,
        source="stand-in",
        fingerprint=fingerprint(splits),
    )


def small(splits: Splits) -> Splits:
    """Images of 7 x 7: the largest of each 4 x 4 block."""

    def shrink(x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), 1, 7, 4, 7, 4).max(axis=(3, 5))

    return Splits(shrink(splits.train_x), splits.train_y, shrink(splits.test_x), splits.test_y)


@pytest.fixture(scope="session")
def rectangles() -> Dataset:
    """130 + 60 images of 28 x 28."""
    return as_dataset(recipes.rectangles(130, 60, 0))


@pytest.fixture(scope="session")
def tiny() -> Dataset:
    """160 + 80 images of 7 x 7."""
    return as_dataset(small(recipes.rectangles(160, 80, 0)))


@pytest.fixture(scope="session")
def own_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's own data: the tiny images as .npz."""
    splits = small(recipes.rectangles(160, 80, 0))
    path = tmp_path_factory.mktemp("own") / "mine.npz"
    np.savez(path, **splits._asdict())
    return path


@pytest.fixture(scope="session")
def brief() -> Protocol:
    """Two learning rates, two trials, three epochs; 136 training images leave a last batch of 16."""
    return Protocol(epochs=3, batch=30, lrs=(0.001, 0.01), trials=2)
