"""The checkpoint of an interrupted run, and a lock that says which process trains it now.

A checkpoint is one file a run (see `tensors_file`), replaced whole after an epoch. A claim is a lock, so that
several processes work on one ledger and none repeats another's work. The system frees it when its process
ends for any reason, so that a run whose process died can be claimed again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout  # torch requires it
from torch import Tensor

from ..ledger.tensors_file import read_tensors, write_tensors

_log = logging.getLogger("torchldr_paper")

VERSION = 2  # since 2 with a checksum
FOLDER = ".checkpoints"


class CheckpointFile:
    """The checkpoint of one run, by the folder of the ledger, the run's hash and the data's fingerprint."""

    def __init__(self, results: Path, key: str, fingerprint: str) -> None:
        self.path = results / FOLDER / f"{key}.safetensors"
        self._identity = {"version": VERSION, "run": key, "data": fingerprint}

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and state as saved; None if there is no usable checkpoint (a bad one is logged)."""
        if not self.path.is_file():
            return None
        try:
            tensors, about, checksum = read_tensors(self.path)
        except ValueError as error:
            _log.warning("the checkpoint cannot be used, the run starts over: %s", error)
            return None
        state = about.get("state")
        known = {key: state.get(key) for key in self._identity} if isinstance(state, dict) else None
        if checksum is None or known != self._identity:
            _log.warning("%s: the checkpoint is of other data or code, the run starts over", self.path)
            return None
        return tensors, about["state"]

    def save(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Replace what was saved; at any moment the file is the old or the new one."""
        write_tensors(self.path, tensors, {"state": {**self._identity, **state}})

    def remove(self) -> None:
        """Forget it: the run is in the ledger. What a killed process left half-written goes too."""
        for left in (self.path, *self.path.parent.glob(f"{self.path.stem}.*.tmp")):
            left.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other runs have theirs there
            self.path.parent.rmdir()


class Claim:
    """The claim of one run, by the folder of the ledger and the run's hash."""

    def __init__(self, results: Path, key: str) -> None:
        self._path = results / FOLDER / f"{key}.lock"
        self._lock = FileLock(self._path)

    def is_seen(self) -> bool:
        """Whether its file is here: the machine shares the folder with whoever holds the claim."""
        return self._path.exists()

    def take(self) -> bool:
        """Whether the run is this process's now."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Held by another, who may be removing the folder just now.
        with contextlib.suppress(Timeout, FileNotFoundError):
            self._lock.acquire(timeout=0)
        return self._lock.is_locked

    def release(self) -> None:
        # Removed while it is held: whoever comes after finds what this process has written.
        with contextlib.suppress(OSError):
            self._path.unlink()
        self._lock.release()
        with contextlib.suppress(OSError):  # other runs have theirs there
            self._path.parent.rmdir()
