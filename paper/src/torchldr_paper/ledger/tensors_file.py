"""Tensors and JSON values in one file, of the safetensors format: it runs no code when it is read."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write both, whole or not at all: at any moment the file is the old or the new one."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    packed = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(packed, partial, {name: json.dumps(value) for name, value in about.items()})
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_tensors` wrote, tensors on the CPU; what other programs say of theirs is left out.

    Raises:
        ValueError: where there is no file of this format.
    """
    from safetensors import SafetensorError, safe_open

    about: dict[str, Any] = {}
    try:
        with safe_open(path, "pt") as stored:
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 -- no mapping
            for name, text in (stored.metadata() or {}).items():
                with contextlib.suppress(json.JSONDecodeError):
                    about[name] = json.loads(text)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: cannot be read as tensors ({error}).") from error
    return tensors, about
