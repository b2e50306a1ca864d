"""Where an interrupted run goes on: one file a run, replaced whole after an epoch.

See `tensors_file` for the format.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..ledger.tensors_file import read_tensors, write_tensors

_log = logging.getLogger("torchldr_paper")

VERSION = 2  # since 2 with a checksum
FOLDER = ".checkpoints"


@dataclass(frozen=True)
class Checkpoint:
    """A run after some epochs: its tensors, and all else as JSON values."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]


class CheckpointFile:
    """The checkpoint of one run, by the folder of the ledger, the run's hash and the data's fingerprint."""

    def __init__(self, results: Path, key: str, fingerprint: str) -> None:
        self.path = results / FOLDER / f"{key}.safetensors"
        self._identity = {"version": VERSION, "run": key, "data": fingerprint}

    def load(self) -> Checkpoint | None:
        """What was saved; None where there is nothing, or nothing that can be used (which is logged)."""
        if not self.path.is_file():
            return None
        try:
            tensors, about, checksum = read_tensors(self.path)
        except ValueError as error:
            _log.warning("the checkpoint cannot be used, the run starts anew: %s", error)
            return None
        state = about.get("state")
        known = {key: state.get(key) for key in self._identity} if isinstance(state, dict) else None
        if checksum is None or known != self._identity:
            _log.warning("%s: the checkpoint is of other data or code, the run starts anew", self.path)
            return None
        return Checkpoint(tensors, about["state"])

    def save(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Replace what was saved; at any moment the file is the old or the new one."""
        write_tensors(self.path, tensors, {"state": {**self._identity, **state}})

    def remove(self) -> None:
        """Forget it: the run is in the ledger. What a killed process left half-written goes too."""
        for left in (self.path, *self.path.parent.glob(f"{self.path.stem}.*.tmp")):
            left.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other runs have theirs there
            self.path.parent.rmdir()
