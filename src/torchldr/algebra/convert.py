"""Exact representations: the same matrix as a member of a structured class."""

from __future__ import annotations

from torch import Tensor

from ..core import rules
from ..core.linear_map import LinearMap
from ..core.matrix import StructuredMatrix
from ..core.structures import get_structure


def convert(
    M: LinearMap | Tensor, structure: str | type[StructuredMatrix], *, tol: float | None = None
) -> StructuredMatrix:
    """The same matrix as a member of a structured class, exactly.

    Args:
        M: a linear map, or a tensor (m, n).
        structure: a class or its name. Every real matrix is Toeplitz-like and Hankel-like; its rank is that
            of its displacement: 2 for a Toeplitz matrix, 1 for a circulant one, at most 2 r for one of rank
            r. LDR-TD contains low-rank, Toeplitz, Hankel, circulant and Vandermonde matrices, grids of
            circulant blocks and of convolutions, and the classes with shifts or subdiagonal operators.
        tol: singular values of a displacement below `tol` times the largest are dropped; by default
            max(m, n) times the dtype's precision.

    Returns:
        The matrix, in the dtype of M, differentiable in the tensors of M. The derivative holds for changes
        that keep the rank of the displacement; others leave the class at this rank.

    Raises:
        TypeError: if no such form of M is known.

    >>> import torch
    >>> from torchldr import Toeplitz
    >>> convert(Toeplitz(torch.arange(4.0)), "ldr_td").rank
    2
    """
    cls = get_structure(structure)
    if type(M) is cls:
        return M
    if not isinstance(M, LinearMap | Tensor):
        raise TypeError(f"convert: expected a matrix, got {type(M).__name__}.")
    found = rules.first(f"to_{cls.name}", M, tol=tol)
    if found is None:
        raise TypeError(
            f"convert: no member of {cls.name!r} is known to be a {type(M).__name__}. Its displacement rank "
            f"may still be low; {cls.__name__}.from_dense finds an approximation."
        )
    return found
