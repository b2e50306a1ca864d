"""Where an interrupted fine-tuning goes on: one file, replaced whole, that runs no code when it is read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

VERSION = 1
FILE = "finetune.pt"


class StateFile:
    """The checkpoint of one fine-tuning.

    Args:
        folder: where it lies; made when something is written.
        settings: what the numbers depend on. A checkpoint of other settings is refused.
    """

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
            state = torch.load(self.path, map_location="cpu", weights_only=True)
            known = state["settings"]
        except Exception as error:
            raise ValueError(f"finetune: {self.path} is no checkpoint that can be read ({error}).") from error
        known, wanted = _comparable(known), _comparable(self.settings)
        for key in {*known, *wanted}:
            if known.get(key) != wanted.get(key):
                raise ValueError(
                    f"finetune: {self.path} is of another fine-tuning: {key} was {known.get(key)!r} there "
                    f"and is {wanted.get(key)!r} here. Give another folder, or remove it."
                )
        return state

    def save(self, state: Mapping[str, Any]) -> None:
        """Replace what was saved; at any moment the file is the old or the new one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(f".{os.getpid()}.tmp")
        try:
            with partial.open("wb") as stream:
                torch.save({**state, "settings": self.settings}, stream)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(partial, self.path)
        finally:
            partial.unlink(missing_ok=True)


def _comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with shapes less a last axis of one number, which 0.1 left out of some."""
    found = {name: s[:-1] if s[-1:] == [1] else s for name, s in settings.get("shapes", {}).items()}
    return {**settings, "shapes": found}


def shapes(model: nn.Module) -> dict[str, list[int]]:
    """Names and shapes of what a state_dict of the model holds."""
    return {name: list(tensor.shape) for name, tensor in model.state_dict().items()}


def random_state(device: torch.device) -> dict[str, Any]:
    """The state of torch's random numbers, on the CPU and on the device."""
    cuda = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    for tensor in state["cuda"]:
        torch.cuda.set_rng_state(tensor, device)


def copied(model: nn.Module) -> dict[str, Any]:
    """The model's numbers as they are now, on the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
