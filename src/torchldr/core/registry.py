"""The registry of structured classes: declaring one with a name adds it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .matrix import StructuredMatrix

REGISTRY: dict[str, type[StructuredMatrix]] = {}


def get_structure(name: str | type[StructuredMatrix]) -> type[StructuredMatrix]:
    """The structured class of this name.

    >>> get_structure("low_rank")
    <class 'torchldr.matrices.low_rank.LowRank'>
    """
    if isinstance(name, type):
        return name
    if name not in REGISTRY:
        raise ValueError(f"unknown structure {name!r}.{near(name, REGISTRY, ' ')}")
    return REGISTRY[name]


def structures() -> dict[str, type[StructuredMatrix]]:
    """All registered classes by name, in alphabetical order."""
    return dict(sorted(REGISTRY.items()))


def near(name: Any, known: Mapping[str, Any], before: str = ". ") -> str:
    spelled = str(name).lower().replace("-", "_").replace(" ", "_")
    close = difflib.get_close_matches(spelled, known, n=1)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    listing = ", ".join(sorted(known)) or "none"
    return f"{before}{hint}Known: {listing}"
