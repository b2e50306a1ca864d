"""Layers."""

from .linear import StructuredLinear

__all__ = ["StructuredLinear"]
