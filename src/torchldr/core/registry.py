"""The registry of structured classes: declaring one with a name adds it."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Any

REGISTRY: dict[str, Any] = {}  # name to class


def near(name: Any, known: Collection[str], before: str = ". ") -> str:
    """The end of an error about an unknown name: the closest match and the known names."""
    spelled = str(name).lower().replace("-", "_").replace(" ", "_")
    close = difflib.get_close_matches(spelled, known, n=1)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    listing = ", ".join(sorted(known)) or "none"
    return f"{before}{hint}Known: {listing}"
