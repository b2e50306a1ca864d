"""A fitted forecaster in one file: NumPy arrays and JSON, no pickle."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from ..whole_file import whole_file

FORMAT, VERSION = "torchldr.forecaster", 1


def write(path: str | os.PathLike[str], facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Both to one .npz file, whole or not at all."""
    header = json.dumps({"format": FORMAT, "version": VERSION, **facts}, default=float)
    with whole_file(path) as stream:
        np.savez(stream, header=np.array(header), **arrays)  # type: ignore[arg-type]


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What `write` wrote.

    Raises:
        ValueError: for any other file.
    """
    try:
        with np.load(Path(path), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        facts = json.loads(str(arrays.pop("header")))
        right = facts.pop("format") == FORMAT and facts.pop("version") == VERSION
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged archive raises whatever zip and NumPy think of
        raise ValueError(f"LinearForecaster.load: {path} is not a saved forecaster ({error}).") from None
    if not right:
        raise ValueError(f"LinearForecaster.load: {path} is not a saved forecaster of version {VERSION}.")
    return facts, arrays
