"""Displacement as equivariance: how closely a move of the input becomes a move of the output.

A linear map M is equivariant to a move B of its input and A of its output if M (B x) = A (M x) for all x,
that is, if A M - M B = 0. Then A^i M = M B^i for every i, so M respects the group that the moves generate.
With a displacement of low rank this holds up to a few directions. The relative size of the displacement
measures it:

    error = |A M - M B| / sqrt(|A M|^2 + |M B|^2)        Sylvester's form
    error = |M - A M B| / sqrt(|M|^2 + |A M B|^2)        Stein's: M B' = A M with B' the inverse of B

in Frobenius norms: 0 for an equivariant map, about 1 for one that is unrelated to the moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..core.linear_map import LinearMap
from ..core.matrix import StructuredMatrix
from ..operators import Operator
from .displacement import checked_operators, dense
from .members import shift
from .structure import Form

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@runtime_checkable
class HasMatrix(Protocol):
    """A layer that knows its structured matrix, as `StructuredLinear` does."""

    def matrix(self) -> StructuredMatrix: ...


def equivariance_error(
    M: LinearMap | Tensor, A: Operator | Tensor, B: Operator | Tensor, form: Form = "sylvester"
) -> Tensor:
    """How far a matrix is from equivariant: 0 for an equivariant one, about 1 for an unrelated one.

    Args:
        M: a linear map or a dense matrix, shape (m, n).
        A: the move of the output, m x m: an operator or a dense matrix.
        B: the move of the input, n x n; for Stein's form the inverse of the move.
        form: "sylvester" compares A M with M B, "stein" M with A M B.

    Returns:
        The relative Frobenius norm of the displacement, shape (). It is differentiable, so it can serve as a
        penalty.
    """
    A, B = checked_operators("equivariance_error", M, A, B, form)
    W = dense(M)
    left = A @ W
    right = B.rmatmul(left) if form == "stein" else B.rmatmul(W)
    left = W if form == "stein" else left
    norm = torch.linalg.matrix_norm
    size = torch.linalg.vector_norm(torch.stack((norm(left), norm(right))))  # has a derivative at 0
    return norm(left - right) / torch.where(size > 0, size, 1)  # 0 is equivariant to everything


@dataclass(frozen=True, eq=False)
class LearnedOperators:
    """The result of `learned_operators`.

    Attributes:
        structure: name of the layer's class.
        A, C: its operators, of the output and of the input. The displacement is M - A M C^T.
        matrix: the dense weight M, shape (m, n).
        displacement: M - A M C^T, of low rank.
        error: `equivariance_error` by the operators, in Stein's form.
        shift_error: the same by plain shifts Z_0, where training starts.
        rank: an upper bound of the displacement's rank.
    """

    structure: str
    A: Operator
    C: Operator
    matrix: Tensor
    displacement: Tensor
    error: float
    shift_error: float
    rank: int

    def entries(self, side: str) -> dict[str, Tensor]:
        """The operator's entries by diagonal: those of "A" or "C" that are not all 0."""
        dense = (self.A if side == "A" else self.C).to_dense()
        n = dense.shape[0]
        found = {
            "subdiagonal": dense.diagonal(-1),
            "diagonal": dense.diagonal(),
            "superdiagonal": dense.diagonal(1),
        }
        if n > 2:
            found["corners"] = torch.stack((dense[0, -1], dense[-1, 0]))
        return {name: t for name, t in found.items() if bool((t != 0).any())}

    def picture(self) -> Figure:
        """The weight, its displacement, their singular values, and the operators: a matplotlib figure."""
        from .pictures import draw

        return draw(self)

    def __repr__(self) -> str:
        m, n = self.matrix.shape
        return (
            f"LearnedOperators({self.structure!r}, {m} x {n}, error={self.error:.4g}, "
            f"shift_error={self.shift_error:.4g}, rank<={self.rank})"
        )


@torch.no_grad()
def learned_operators(layer: HasMatrix | StructuredMatrix) -> LearnedOperators:
    """The displacement operators of a layer, and how equivariant its weight is to them.

    Args:
        layer: a `StructuredLinear`, or its matrix, of a class whose displacement has Stein's form: the
            Krylov classes `ldr_sd`, `ldr_td`, `toeplitz_like`, `hankel_like`, `vandermonde_like`, and
            `circulant` and `low_rank`.

    Raises:
        TypeError: for a class without such operators.

    >>> from torchldr import LDRSubdiagonal
    >>> learned_operators(LDRSubdiagonal.random(16, 16, rank=1)).error < 1
    True
    """
    M = layer.matrix() if isinstance(layer, HasMatrix) else layer
    if not isinstance(M, StructuredMatrix):
        raise TypeError(
            f"learned_operators: expected a StructuredLinear or its matrix, got {type(M).__name__}."
        )
    # A copy, so that further training does not change the report.
    copies = {name: t.detach().clone() for name, t in M.tensors.items()}
    M = M.with_tensors(copies).double()
    found = M.displacement_structure()
    if found is None or found.form != "stein":
        raise TypeError(f"learned_operators: {type(M).__name__} has no operators A and C of its own.")
    W, (m, n) = M.to_dense(), M.shape
    shifts = shift(m, 0.0, M), shift(n, 0.0, M).T
    return LearnedOperators(
        structure=M.name, A=found.A, C=found.B.T, matrix=W, displacement=found.of_dense(W),
        error=float(equivariance_error(W, found.A, found.B, "stein")),
        shift_error=float(equivariance_error(W, *shifts, "stein")),
        rank=min(found.rank, m, n),
    )  # fmt: skip
