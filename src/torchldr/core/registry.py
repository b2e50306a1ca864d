"""The registry of structured classes: declaring one with a name adds it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

REGISTRY: dict[str, Any] = {}  # name to class
CLASSES: dict[str, Any] = {}  # every class, also one without a name, by a key that is its alone


def name_alone(cls: type, name: str | None) -> str:
    """Keep a class under a key that no other has: its name, or one made up."""
    key = f"{cls.__qualname__}#{len(CLASSES)}" if name is None or name in CLASSES else name
    CLASSES[key] = cls
    return key


def near(name: Any, known: Mapping[str, Any], before: str = ". ") -> str:
    """The end of an error about an unknown name: the one that is like it, and all that are known."""
    spelled = str(name).lower().replace("-", "_").replace(" ", "_")
    close = difflib.get_close_matches(spelled, known, n=1)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    listing = ", ".join(sorted(known)) or "none"
    return f"{before}{hint}Known: {listing}"
