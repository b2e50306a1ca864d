"""Sums along rows that decay by the row's node: `decay.c` has the loop."""

from __future__ import annotations

from torch import Tensor

from . import library
from .library import Kernel
from .threads import in_parts

_DECAY = Kernel("decay", "iiiipp")


def decay(nodes: Tensor, X: Tensor) -> None:
    """X_ij += node_i X_{i, j-1} for j = 1, 2, .., in place.

    Args:
        nodes: shape (m,).
        X: shape (.., m, n), contiguous, in the dtype of `nodes`.
    """
    m, n = X.shape[-2:]
    if library.serves(nodes, X):
        given = nodes.contiguous()
        in_parts(X.numel() // n, n, lambda start, stop: _DECAY(X.dtype, start, stop, m, n, given, X))
        return
    for j in range(1, n):
        X[..., j] += nodes * X[..., j - 1]
