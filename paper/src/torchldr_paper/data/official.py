"""Loading a dataset from its owner's files, through a cache of one .npz file each.

A cache carries a key made from the source files' names, sizes and times, so that a changed source is parsed
again, and zip's own checksums, so that a damaged cache is noticed and rebuilt.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from torchldr.whole_file import whole_file
from torchldr_paper.data.containers import Located, locate, read_files
from torchldr_paper.data.dataset import DataFileError, Dataset, Splits, fingerprint
from torchldr_paper.data.places import user_cache
from torchldr_paper.data.registry import Spec

_log = logging.getLogger("torchldr_paper.data")

VERSION = 1  # raise it when parsing changes what comes out
FOLDER = ".torchldr-cache"
_STALE_SECONDS = 24 * 3600.0


def cache_key(located: Located, name: str, *, verify: bool) -> str:
    """A digest of everything that the parsed arrays depend on."""
    sources = [
        [path.relative_to(located.root).as_posix(), path.stat().st_size, path.stat().st_mtime_ns]
        for path in located.containers
    ]
    text = json.dumps([VERSION, name, verify, sources])
    return hashlib.sha256(text.encode()).hexdigest()


def cache_files(root: Path, name: str) -> list[Path]:
    """Where a parsed dataset may be kept: beside the data, else in the user's cache folder."""
    where = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:12]
    return [root / FOLDER / f"{name}.npz", user_cache() / "parsed" / where / f"{name}.npz"]


def read_cache(path: Path, key: str) -> tuple[Splits, str] | None:
    """The arrays and their fingerprint, or None where the file is absent, outdated or damaged."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            if str(stored["key"]) != key:
                return None
            return Splits(*(stored[field] for field in Splits._fields)), str(stored["fingerprint"])
    except FileNotFoundError:
        return None
    except Exception as error:  # damage shows in many ways, and none of them matters
        _log.warning("%s: the cache cannot be read and is rebuilt (%s)", path, error)
        return None


def _write_cache(paths: list[Path], key: str, splits: Splits, digest: str) -> Path | None:
    """Keep a parsed dataset in the first place that can be written to, which is returned."""
    for path in paths:
        try:
            _remove_stale(path)
            with whole_file(path) as stream:
                np.savez(stream, key=np.array(key), fingerprint=np.array(digest), **splits._asdict())
            return path
        except OSError as error:
            _log.debug("%s: cannot be written (%s)", path, error)
    _log.warning("the parsed data could not be kept in any of: %s", ", ".join(map(str, paths)))
    return None


def _remove_stale(path: Path) -> None:
    """Remove what a killed process left; younger files may be another's work in progress."""
    for partial in path.parent.glob(f"{path.name}.*.tmp"):
        if time.time() - partial.stat().st_mtime > _STALE_SECONDS:
            partial.unlink(missing_ok=True)


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
    places = cache_files(located.root, spec.name)
    key = cache_key(located, spec.name, verify=verify)
    stored = next((hit for path in places if (hit := read_cache(path, key))), None)
    if stored is None:
        sources = ", ".join(path.name for path in located.containers[:3])
        _log.info("%s: reading %s (this is done once)", spec.name, sources)
        splits = spec.assemble(read_files(located, spec.checksums, verify=verify))
        _check(spec, splits, located)
        stored = splits, fingerprint(splits)
        kept = _write_cache(places, key, *stored)
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
