"""Export to C99 for microcontrollers."""

from .api import to_c
from .files import CReport
from .steps import LayerRow

__all__ = ["CReport", "LayerRow", "to_c"]
