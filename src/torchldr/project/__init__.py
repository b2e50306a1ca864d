"""Projection: a structured matrix as near as possible to a dense one.

problem      the target and the loss
methods      the class's own rule "project", or descent from random members
climbing     from rank to rank, so that a higher one is never worse
pointwise    alternating least squares for fixed operators, after the displacement's SVD
diagonals    one diagonal at a time
stein        operators from the displacement
refining     descent on everything
"""

from ..core.matrix import Projection
from .api import from_dense

__all__ = ["Projection", "from_dense"]
