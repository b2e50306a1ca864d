"""The message about a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


def unknown(what: str, name: Any, known: Iterable[str]) -> str:
    """The message, with the closest match and the known names.

    >>> unknown("table", "rectangels", ["rectangles", "shl"])
    "unknown table 'rectangels'. Did you mean 'rectangles'? Known: rectangles, shl."
    """
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {name!r}.{hint} Known: {', '.join(names)}."
