"""Parsed datasets kept as one .npz file each, written whole or not at all.

The file carries a key made from the source files' names, sizes and times, so that a changed source
is parsed again, and zip's own checksums, so that a damaged cache is noticed and made anew.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from pathlib import Path

import numpy as np

from torchldr.whole_file import whole_file
from torchldr_paper.data.containers import Located
from torchldr_paper.data.dataset import Splits
from torchldr_paper.data.npz import NpzArchive
from torchldr_paper.data.places import user_cache

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


def read(path: Path, key: str) -> tuple[Splits, str] | None:
    """The arrays and their fingerprint, or None where the file is absent, outdated or damaged."""
    try:
        with path.open("rb") as stream:
            stored = NpzArchive(stream)
            if str(stored.read("key")) != key:
                return None
            splits = Splits(*(stored.read(field) for field in Splits._fields))
            return splits, str(stored.read("fingerprint"))
    except FileNotFoundError:
        return None
    except Exception as error:  # damage shows in many ways, and none of them matters
        _log.warning("%s: the cache cannot be read and is made anew (%s)", path, error)
        return None


def write(paths: list[Path], key: str, splits: Splits, fingerprint: str) -> Path | None:
    """Keep a parsed dataset in the first place that can be written to, which is returned."""
    for path in paths:
        try:
            _write(path, key, splits, fingerprint)
        except OSError as error:
            _log.debug("%s: cannot be written (%s)", path, error)
        else:
            return path
    _log.warning("the parsed data could not be kept in any of: %s", ", ".join(map(str, paths)))
    return None


def _write(path: Path, key: str, splits: Splits, fingerprint: str) -> None:
    _remove_stale(path)
    with whole_file(path) as stream:
        np.savez(stream, key=np.array(key), fingerprint=np.array(fingerprint), **splits._asdict())


def _remove_stale(path: Path) -> None:
    """Remove what a killed process left; younger files may be another's work in progress."""
    for partial in path.parent.glob(f"{path.name}.*.tmp"):
        if time.time() - partial.stat().st_mtime > _STALE_SECONDS:
            partial.unlink(missing_ok=True)
