"""Loading a dataset from its owner's files, through the cache."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from torchldr_paper.data import cache
from torchldr_paper.data.containers import Located, locate, read_files
from torchldr_paper.data.dataset import Dataset, Splits, fingerprint
from torchldr_paper.data.errors import DataFileError
from torchldr_paper.data.registry import Spec

_log = logging.getLogger("torchldr_paper.data")

_SLACK = 1e-3  # how far a pixel that was printed as text may lie outside [0, 1]


def find(spec: Spec, places: Sequence[Path]) -> tuple[Located | None, list[Located]]:
    """The first place that has all of a dataset's files (or None), and those before it that have some."""
    incomplete: list[Located] = []
    for root in places:
        located = locate(spec, root)
        if located.complete:
            return located, incomplete
        if located.found:
            incomplete.append(located)
    return None, incomplete


def load_official(spec: Spec, located: Located, *, verify: bool = True) -> Dataset:
    """Read a dataset whose files are all there: from the cache, else parsed, verified and then kept.

    Raises:
        DataFileError: when a file is damaged or not what it should be; no cache is left of it.
    """
    places = cache.cache_files(located.root, spec.name)
    key = cache.cache_key(located, spec.name, verify=verify)
    stored = next((hit for path in places if (hit := cache.read(path, key))), None)
    if stored is None:
        sources = ", ".join(path.name for path in located.containers[:3])
        _log.info("%s: reading %s (this is done once)", spec.name, sources)
        splits = spec.assemble(read_files(located, spec.checksums, verify=verify))
        _check(spec, splits, located)
        stored = splits, fingerprint(splits)
        kept = cache.write(places, key, *stored)
        _log.info("%s: kept in %s", spec.name, kept)
    splits, digest = stored
    origin = str(located.containers[0].parent) + ("" if verify else " (checksums not verified)")
    return Dataset.of(splits, digest, **spec.facts, source="official", origin=origin)


def _check(spec: Spec, splits: Splits, located: Located) -> None:
    """Refuse arrays that parsed but cannot be this dataset."""
    where = f"{spec.name} (from {', '.join(str(path) for path in located.containers)})"
    for part, x, y, count in (
        ("training", splits.train_x, splits.train_y, spec.train),
        ("test", splits.test_x, splits.test_y, spec.test),
    ):
        if x.shape != (count, *spec.image_shape) or y.shape != (count,):
            raise DataFileError(
                f"{where}: expected {count} {part} images of {spec.image_shape}, got images "
                f"{x.shape} and labels {y.shape}."
            )
        wrong = np.flatnonzero((y < 0) | (y >= spec.classes))
        if len(wrong):
            raise DataFileError(
                f"{where}: {part} label {wrong[0]} is not a whole number from 0 to {spec.classes - 1}."
            )
        if x.dtype != np.uint8 and not (x.min() >= -_SLACK and x.max() <= 1 + _SLACK):
            raise DataFileError(
                f"{where}: {part} pixels must lie in [0, 1], got {x.min():.4g} to {x.max():.4g}."
            )
