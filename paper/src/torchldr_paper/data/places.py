"""Where data may lie: the folder that was named, `$TORCHLDR_DATA`, the user's cache folder."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

VARIABLE = "TORCHLDR_DATA"


def _home() -> Path:
    """The user's folder, or that of temporary files for a user without one."""
    try:
        return Path.home()
    except RuntimeError:  # no HOME, and no entry in the table of users
        return Path(tempfile.gettempdir())


def user_cache() -> Path:
    """The user's cache folder for torchldr; it need not exist.

    `$XDG_CACHE_HOME/torchldr` where that is set, else what the platform does:
    `~/.cache/torchldr`, `~/Library/Caches/torchldr` or `%LOCALAPPDATA%\\torchldr`.
    """
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    if chosen and Path(chosen).is_absolute():  # the specification says to ignore relative ones
        return Path(chosen) / "torchldr"
    if sys.platform == "darwin":
        return _home() / "Library" / "Caches" / "torchldr"
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"]) / "torchldr"
    return _home() / ".cache" / "torchldr"


def search_path(data_dir: str | os.PathLike[str] | None = None) -> list[Path]:
    """The folders in which datasets are looked for, the first wins.

    Args:
        data_dir: a folder to look in first; it must exist.

    Returns:
        `data_dir`, the folder in `$TORCHLDR_DATA` and the user's cache folder, as far as given;
        the latter two may not exist.

    Raises:
        FileNotFoundError: when `data_dir` is given and is not a folder.
    """
    places = []
    if data_dir is not None:
        folder = Path(data_dir).expanduser()
        if not folder.is_dir():
            raise FileNotFoundError(f"data_dir: {str(folder)!r} is not a folder.")
        places.append(folder)
    if os.environ.get(VARIABLE):
        places.append(Path(os.environ[VARIABLE]).expanduser())
    places.append(user_cache())
    return list(dict.fromkeys(places))
