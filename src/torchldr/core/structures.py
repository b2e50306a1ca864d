"""Structured classes by their names."""

from __future__ import annotations

from .matrix import StructuredMatrix
from .registry import REGISTRY, near


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


def unstructured() -> type[StructuredMatrix]:
    """The class of all matrices, which leaves a weight unchanged."""
    return next(cls for cls in REGISTRY.values() if not cls.structured)


def structures() -> dict[str, type[StructuredMatrix]]:
    """All registered classes by name, in alphabetical order."""
    return dict(sorted(REGISTRY.items()))
