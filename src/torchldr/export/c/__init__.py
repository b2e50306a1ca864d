"""Export to C99 for microcontrollers."""

from .api import to_c
from .graph import LayerRow
from .report import CReport

__all__ = ["CReport", "LayerRow", "to_c"]
