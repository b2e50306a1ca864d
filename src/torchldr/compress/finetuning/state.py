"""Where an interrupted fine-tuning goes on: one file, replaced whole, that runs no code when it is read.

Behind what torch wrote stands its checksum, for torch notices little damage. Files of version 0.1 have none.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn

from ...whole_file import whole_file

VERSION = 1
FILE = "finetune.pt"
_MARK = b"\nsha256 "
_TAIL = len(_MARK) + 64


class StateFile:
    """The checkpoint of one fine-tuning, in a folder; one of other settings is refused."""

    def __init__(self, folder: str | os.PathLike[str], settings: Mapping[str, Any]) -> None:
        self.path, self.settings = Path(folder) / FILE, {"version": VERSION, **settings}

    def load(self) -> dict[str, Any] | None:
        """What was saved, or None.

        Raises:
            ValueError: where the file is damaged or of other settings.
        """
        if not self.path.is_file():
            return None
        try:
            with self.path.open("rb") as stream:
                _verify(stream)
                state = torch.load(stream, map_location="cpu", weights_only=True)
            known = dict(state["settings"])
        except Exception as error:
            raise ValueError(
                f"finetune: {self.path} is no checkpoint that can be read ({error}). Remove it to start anew."
            ) from error
        known, wanted = _comparable(known), _comparable(self.settings)
        for key in {*known, *wanted}:
            if known.get(key) != wanted.get(key):
                raise ValueError(
                    f"finetune: {self.path} is of another fine-tuning: {key} was {known.get(key)!r} there "
                    f"and is {wanted.get(key)!r} here. Give another folder, or remove it."
                )
        return state

    def save(self, state: Mapping[str, Any]) -> None:
        """Replace what was saved; at any moment the file is the old or the new one.

        Raises:
            OSError: where it cannot be written, naming the file.
        """
        try:
            with whole_file(self.path) as stream:
                torch.save({**state, "settings": self.settings}, stream)
                stream.flush()
                stream.write(_MARK + _digest(stream, stream.tell()))
        except (OSError, RuntimeError) as error:  # torch hides what the system says behind its own
            why = error.__context__ if isinstance(error.__context__, OSError) else error
            raise OSError(f"finetune: {self.path} cannot be written ({why}).") from error


def _verify(stream: IO[bytes]) -> None:
    """Hold a file against its checksum, where it has one."""
    size = max(0, stream.seek(0, os.SEEK_END) - _TAIL)
    stream.seek(size)
    tail = stream.read()
    if tail.startswith(_MARK) and tail.removeprefix(_MARK) != _digest(stream, size):
        raise ValueError("its checksum is not that of its content")
    stream.seek(0)


def _digest(stream: IO[bytes], size: int) -> bytes:
    """Sha256 of the first bytes of a file, in hexadecimal."""
    with mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_READ) as content:
        return hashlib.sha256(content).hexdigest().encode()


def _comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with shapes less a last axis of one number, which 0.1 left out of some."""
    found = {name: s[:-1] if s[-1:] == [1] else s for name, s in settings.get("shapes", {}).items()}
    return {**settings, "shapes": found}


def copied(model: nn.Module) -> dict[str, Any]:
    """The model's numbers as they are now, on the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
