"""Export to C99 for microcontrollers."""

from .api import to_c
from .files import CReport
from .integer import IntegerReport
from .steps import LayerRow

__all__ = ["CReport", "IntegerReport", "LayerRow", "to_c"]
