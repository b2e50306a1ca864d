"""Projection: the nearest structured matrix to a dense one that we can find.

problem      what is approximated, and how far an approximation is from it
methods      the class's own way (its rule "project"), or descent from random members
climbing     from rank to rank, so that a higher one is never worse
pointwise    alternating least squares for fixed operators, after the displacement's SVD
diagonals    one diagonal at a time
stein        operators from the displacement
refining     descent on everything
"""

from ..core.matrix import Projection
from .api import from_dense

__all__ = ["Projection", "from_dense"]
