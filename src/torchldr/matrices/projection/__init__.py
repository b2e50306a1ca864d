"""Projection: the nearest structured matrix to a dense one that we can find.

linear       one solve or one SVD: dense, low_rank, circulant, block_circulant
fixed        fixed operators: the displacement's SVD, then alternating least squares (`pointwise`)
vandermonde  the same for nodes on one side
diagonals    fastfood and acdc, one diagonal at a time
subdiagonal  ldr_sd: operators from the displacement (`stein`), then descent (`recursion`, `refining`)
tridiagonal  ldr_td: from all that it contains, then descent (`krylov`)
generic      every other class: descent from random members
climbing     from rank to rank, so that a higher one is never worse
"""

from .api import from_dense
from .problem import Projection

__all__ = ["Projection", "from_dense"]
