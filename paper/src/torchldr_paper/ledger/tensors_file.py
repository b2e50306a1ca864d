"""Tensors and JSON values in one file, of the safetensors format: it runs no code when it is read.

The file holds a checksum of both, so that damage is noticed. Files of version 0.1 have none and can still
be read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchldr.whole_file import whole_file

CHECKSUM = "sha256"


class Contents(NamedTuple):
    """What a file holds; `checksum` is None where it has none."""

    tensors: dict[str, Tensor]
    about: dict[str, Any]
    checksum: str | None


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> str:
    """Write both, whole or not at all (at any moment the file is the old or the new one); their checksum."""
    from safetensors.torch import save

    packed = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    texts = {name: json.dumps(value) for name, value in about.items()}
    checksum = _checksum(packed, texts)
    with whole_file(path) as stream:
        stream.write(save(packed, {**texts, CHECKSUM: checksum}))
    return checksum


def read_tensors(path: str | os.PathLike[str]) -> Contents:
    """What `write_tensors` wrote, tensors on the CPU; metadata of other programs is left out.

    Raises:
        ValueError: if this is not a file of this format, or it is damaged.
    """
    from safetensors import safe_open

    try:
        with safe_open(path, "pt") as stored:
            names = stored.keys()  # not a mapping
            # Copies: the tensors would otherwise be a map of the file and change with it.
            tensors = {name: stored.get_tensor(name).clone() for name in names}
            texts: dict[str, str] = dict(stored.metadata() or {})
    except Exception as error:
        # Of several classes, from a missing file to a dtype that torch does not have.
        raise ValueError(f"{path}: cannot be read as tensors ({error}).") from error
    checksum = texts.pop(CHECKSUM, None)
    if checksum is not None and checksum != _checksum(tensors, texts):
        raise ValueError(f"{path}: damaged, its content is not what its checksum is of.")
    about: dict[str, Any] = {}
    for name, text in texts.items():
        with contextlib.suppress(ValueError, RecursionError):
            about[name] = json.loads(text)
    return Contents(tensors, about, checksum)


def _checksum(tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> str:
    """Sha256 over names, texts, and the types, shapes and bytes of tensors, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(texts):
        digest.update(f"{json.dumps([name, texts[name]])}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{json.dumps([name, str(tensor.dtype), list(tensor.shape)])}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
