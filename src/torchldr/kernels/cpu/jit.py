"""Numba's compiler, with machine code kept on disk where that works; imports numba.

Numba keeps machine code in `NUMBA_CACHE_DIR`, beside the sources or in the user's cache folder. It raises an
error where no such folder can be written, where the disk is full and where a file is damaged. Nobody should
lose a product to that: without a working cache the loops are compiled again in every process.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core import config
from numba.core.caching import FunctionCache

_kept: list[str] = []  # the folder of the first loop that has one
_trouble: list[str] = []  # what went wrong with a cache


def jit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: `numba.njit` without the GIL, with these options and a cache that raises no error."""

    def compiled(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(nogil=True, **options)(function)
        cache = _cache(function)
        if cache is not None:
            dispatcher._cache = cache
        return dispatcher

    return compiled


def kept_in() -> str | None:
    """The folder of the machine code, as far as loops were asked for; None where there is none."""
    return None if _trouble or not _kept else _kept[0]


def why_not_kept() -> str | None:
    """What went wrong with the machine code on disk in this process, or None."""
    return _trouble[0] if _trouble else None


class _Cache(FunctionCache):
    """Numba's cache, where an error on the disk means a miss.

    Numba compares the source of the function's own file. Loops here are made of functions from other files
    of this folder, so what was kept is stale as soon as one of those changed.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file._source_stamp = (self._cache_file._source_stamp, _sources())

    def load_overload(self, *arguments: Any) -> Any:
        try:
            return super().load_overload(*arguments)
        except Exception as error:  # a damaged file raises whatever unpickling it raises
            self._give_up(error)

    def save_overload(self, *arguments: Any) -> None:
        try:
            super().save_overload(*arguments)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self.disable()
        _trouble.append(f"{self.cache_path}: {type(error).__name__}: {error}")


@cache
def _sources(folder: Path = Path(__file__).parent) -> bytes:
    """A checksum of all files that loops are made of."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(folder.rglob("*.py")))).digest()


def _cache(function: Callable[..., Any]) -> _Cache | None:
    if not _may_have_a_folder(Path(inspect.getfile(function)).parent):
        _trouble.append("no home folder is known, and the package's own cannot be written")
        return None
    try:
        cache = _Cache(function)
    except Exception as error:  # "no locator available": neither folder can be written
        _trouble.append(str(error))
        return None
    _kept.append(str(cache.cache_path))
    return cache


def _may_have_a_folder(sources: Path) -> bool:
    """False where Numba would make a folder named `~` in the current one: nobody's home is known."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~")
    return bool(getattr(config, "CACHE_DIR", "")) or os.path.isabs(home) or os.access(sources, os.W_OK)
