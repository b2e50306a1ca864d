"""The message about a name that is not known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchldr.core.registry import near


def unknown(what: str, name: Any, known: Iterable[str]) -> str:
    """The message, with the closest match and the known names.

    >>> unknown("table", "rectangels", ["rectangles", "shl"])
    "unknown table 'rectangels'. Did you mean 'rectangles'? Known: rectangles, shl."
    """
    return f"unknown {what} {name!r}.{near(name, [*known], ' ')}."
