"""Export to C99 in integers alone, with a reference in torch that gives the same bits."""

from .files import IntegerReport

__all__ = ["IntegerReport"]
