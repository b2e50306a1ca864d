"""Claims: which process trains a run now, so that several work on one ledger and none does another's work.

A claim is a lock on a file beside the checkpoints. The system frees it when its process ends, however that
ends, so that a run whose process died can be claimed again.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from filelock import FileLock, Timeout  # torch requires it

from ..trainer.checkpoint import FOLDER

_PAUSE = 0.5  # seconds between two attempts


def is_claimed(results: Path, key: str) -> bool:
    """Whether the file of a claim can be seen here: the machine shares the folder with whoever holds it."""
    return _path(results, key).exists()


def _path(results: Path, key: str) -> Path:
    return results / FOLDER / f"{key}.lock"


class Claim:
    """The claim of one run, by the folder of the ledger and the run's hash."""

    def __init__(self, results: Path, key: str) -> None:
        self._path = _path(results, key)
        self._lock = FileLock(self._path)

    def take(self, seconds: float = 0.0) -> bool:
        """Whether the run is this process's now, or within so many seconds; infinity waits for ever."""
        deadline = time.monotonic() + seconds
        while True:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Held by another, who may be removing the folder just now.
            with contextlib.suppress(Timeout, FileNotFoundError):
                self._lock.acquire(timeout=0)
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(_PAUSE)

    def release(self) -> None:
        # Removed while it is held: whoever comes after finds what this process has written.
        with contextlib.suppress(OSError):
            self._path.unlink()
        self._lock.release()
        with contextlib.suppress(OSError):  # other runs have theirs there
            self._path.parent.rmdir()
