"""Finished pieces of long work, kept in a folder: a run that was interrupted or killed goes on with them.

A piece is a value of JSON under a key, with tensors anywhere in it. The log has one line for each piece; its
first line says what work they belong to, so that other work starts anew. Tensors lie in files and are
mapped from there: they take memory only while they are used, and the system takes it back when it is short.
Without a folder nothing is kept, and tensors stay in memory.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..version import __version__

LOG = "pieces.jsonl"
_MARK = "\0tensor "  # and its name, where a tensor stood: no text begins so


class Pieces:
    """The pieces of one folder.

    Args:
        folder: made where it does not exist; None to keep nothing.
        lends: whether a model may hold tensors of the files when the work is done.

    Raises:
        FileExistsError: where the folder has something else in it.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, lends: bool = False) -> None:
        self.folder, self.lends = None if folder is None else Path(folder), lends
        self._lines: dict[str, dict[str, Any]] = {}
        self._log: IO[bytes] | None = None
        self._count = 0
        if self.folder is None or not self.folder.exists() or (self.folder / LOG).exists():
            return
        if not self.folder.is_dir() or any(self.folder.iterdir()):
            raise FileExistsError(f"{self.folder} exists and holds no interrupted work: name another.")

    def begin(self, work: Mapping[str, Any]) -> bool:
        """Take up this work, or start it; False where the folder had other work, which is then deleted.

        `work` is what decides about the results, as JSON has it.
        """
        if self.folder is None:
            return True
        self.folder.mkdir(parents=True, exist_ok=True)
        self._log = (self.folder / LOG).open("a+b")
        _lock(self._log, self.folder)
        self._log.seek(0)
        good, lines = 0, []
        for line in self._log:
            try:
                lines.append(json.loads(line))
            except ValueError:  # torn: the process ended while it was written
                break
            good += len(line)
        known = not lines or lines[0] == work
        if not lines or not known:
            for file in self.folder.iterdir():
                if file.name != LOG:
                    file.unlink()
            good, lines = 0, []
        self._log.truncate(good)
        if not lines:
            self._append(dict(work))
        self._count = len(lines)
        for line in lines[1:]:  # a machine that goes down may not have written all files
            if all(_sum(self.folder / name) == written for name, written in line["files"].items()):
                self._lines[line["key"]] = line
        return known

    def get(self, key: str) -> Any:
        """A finished piece, or None. Its tensors are mapped: to write to them ends the process."""
        line = self._lines.get(key)
        if line is None or self.folder is None:
            return None
        found = {
            _MARK + name: _mapped(self.folder / file, shape, getattr(torch, dtype))
            for name, (file, dtype, shape) in line.get("tensors", {}).items()
        }
        return pytree.tree_map_only(str, lambda text: found.get(text, text), line["value"])

    def put(self, key: str, value: Any) -> Any:
        """Keep a finished piece; it comes back as `get` gives it where there is a folder.

        Tensors that `zeros` made stay in their files.
        """
        if self.folder is None or self._log is None:
            return value
        tensors: dict[str, Any] = {}

        def mark(tensor: Tensor) -> str:
            name, path = str(len(tensors)), _path(tensor)
            if path is None or path.parent != self.folder:
                self.zeros(f"{self._count:06d}-{name}", tensor.shape, tensor).copy_(tensor.detach())
                path = Path(f"{self._count:06d}-{name}.bin")
            tensors[name] = path.name, str(tensor.dtype).removeprefix("torch."), tensor.shape
            return _MARK + name

        line: dict[str, Any] = {"key": key, "value": pytree.tree_map_only(Tensor, mark, value)}
        line["tensors"] = tensors
        line["files"] = {file: _sum(self.folder / file) for file, _, _ in tensors.values()}
        self._append(line)
        self._lines[key] = line
        self._count += 1
        return self.get(key)

    def zeros(self, name: str, shape: Iterable[int], like: Tensor) -> Tensor:
        """A tensor to be written in place: in a new file of this name, or in memory on the device of `like`.

        It has the dtype of `like`.
        """
        if self.folder is None:
            return torch.zeros(tuple(shape), dtype=like.dtype, device=like.device)
        path = self.folder / f"{name}.bin"
        path.unlink(missing_ok=True)
        return _file(path, shape, like.dtype)

    def close(self, *, done: bool = False) -> None:
        """Let the folder go; it is deleted if the work is done, or if none is."""
        if self._log is not None:
            self._log.close()
            self._log = None
        if self.folder is not None and self.folder.is_dir() and (done or not self._lines):
            shutil.rmtree(self.folder)

    def _append(self, line: Mapping[str, Any]) -> None:
        assert self._log is not None
        self._log.write(json.dumps(line).encode() + b"\n")
        self._log.flush()


@contextmanager
def opened(
    who: str, place: str | os.PathLike[str] | Pieces | None, arguments: Any, content: Any
) -> Iterator[Pieces]:
    """The pieces of a call, in a place as it was given; other work that is found there is deleted.

    Pieces that are given are left open. The work is known by its arguments, as JSON has them, and by the
    content of the models and tensors that it works on.
    """
    pieces = place if isinstance(place, Pieces) else Pieces(place)
    if pieces.folder is not None:
        work = {"who": who, "version": __version__, "arguments": arguments, "content": checksum(content)}
        if not pieces.begin(work):
            what = f"{pieces.folder} is of another model or of other arguments"
            warnings.warn(f"{who}: {what}: starting anew.", stacklevel=4)
    try:
        yield pieces
    finally:
        if pieces is not place:
            pieces.close()


def _file(path: Path, shape: Iterable[int], dtype: torch.dtype) -> Tensor:
    """The tensor in a file, to be written; zeros where there is none."""
    shape = tuple(shape)
    count = math.prod(shape)
    flat = torch.from_file(str(path), True, count, dtype=dtype) if count else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)


def _mapped(path: Path, shape: Iterable[int], dtype: torch.dtype) -> Tensor:
    """The same, to be read: pages that may be written count as memory of the process."""
    shape = tuple(shape)
    if not math.prod(shape):
        return torch.empty(shape, dtype=dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(np.memmap(path, np.uint8, "r")).view(dtype).reshape(shape)


def _path(tensor: Tensor) -> Path | None:
    """The file that a tensor is shared with, all of it."""
    whole = tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.storage_offset() == 0
    file = tensor.untyped_storage().filename if whole else None
    return None if file is None else Path(file)


def checksum(content: Any) -> str:
    """Of tensors and modules, in mappings and sequences as they may be nested; of others by their text."""
    found = hashlib.sha256()

    def add(part: Any) -> None:
        if isinstance(part, Tensor):
            found.update(f"{part.dtype} {tuple(part.shape)}".encode())
            flat = part.detach().to("cpu").to_dense().contiguous().reshape(-1)
            found.update(flat.view(torch.uint8).numpy().data)
        elif isinstance(part, nn.Module):
            add(part.state_dict())
        elif isinstance(part, Mapping):
            for key, value in part.items():
                found.update(f"{key}: ".encode())
                add(value)
        elif isinstance(part, list | tuple):
            for value in part:
                add(value)
        else:
            found.update(repr(part).encode())

    add(content)
    return found.hexdigest()


def _sum(path: Path) -> str | None:
    """A checksum of a file; None where it is not there."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _lock(log: IO[bytes], folder: Path) -> None:
    """Raise where another process is at work there."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        fcntl.flock(log.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BlockingIOError(f"another process is at work in {folder}.") from None
