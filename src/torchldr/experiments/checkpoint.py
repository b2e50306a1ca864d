"""Where an interrupted run goes on: one file a run, replaced whole after an epoch.

The file is in the safetensors format, which holds tensors and text and runs no code when it is read;
what is not a tensor is JSON in its header.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

_log = logging.getLogger("torchldr.experiments")

VERSION = 1
FOLDER = ".checkpoints"


@dataclass(frozen=True)
class Checkpoint:
    """A run after some epochs: its tensors, and all else as JSON values."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]


class CheckpointFile:
    """The checkpoint of one run.

    Args:
        results: the folder of the ledger; the file lies in `.checkpoints` there.
        key: what the run is called: its hash.
        fingerprint: of the data that it is trained on.
    """

    def __init__(self, results: Path, key: str, fingerprint: str) -> None:
        self.path = results / FOLDER / f"{key}.safetensors"
        self._identity = {"version": VERSION, "run": key, "data": fingerprint}

    def load(self) -> Checkpoint | None:
        """What was saved; None where there is nothing, or nothing that can be used (which is logged)."""
        if not self.path.is_file():
            return None
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, framework="pt") as stored:
                state = json.loads((stored.metadata() or {})["state"])
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            _log.warning("%s: the checkpoint cannot be read, the run starts anew (%s)", self.path, error)
            return None
        if {key: state.get(key) for key in self._identity} != self._identity:
            _log.warning("%s: the checkpoint is of other data or code, the run starts anew", self.path)
            return None
        return Checkpoint(tensors, state)

    def save(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Replace what was saved; at any moment the file is the old or the new one."""
        from safetensors.torch import save_file

        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(f".{os.getpid()}.tmp")
        packed = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        try:
            save_file(packed, partial, metadata={"state": json.dumps({**self._identity, **state})})
            os.replace(partial, self.path)
        finally:
            partial.unlink(missing_ok=True)

    def remove(self) -> None:
        """Forget it: the run is in the ledger. What a killed process left half-written goes too."""
        for left in self.path.parent.glob(f"{self.path.stem}.*"):
            left.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other runs have theirs there
            self.path.parent.rmdir()
