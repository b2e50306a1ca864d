"""Displacement by any operators: the map, its rank, its generators, and back again."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.checks import check_choices
from ..core.linear_map import LinearMap
from ..operators import DenseOperator, Operator
from .closure import displaced, worthwhile
from .equation import solve_displacement_equation
from .structure import FORMS, Form, Generators, displacement_of_dense, factored, reduce

Matrix = Tensor | LinearMap


def displacement(M: Matrix, A: Operator | Tensor, B: Operator | Tensor, form: Form = "stein") -> Tensor:
    """M - A M B (Stein's form) or A M - M B (Sylvester's), as a dense matrix.

    Args:
        M: a matrix or a linear map, m x n.
        A: an operator or a matrix, m x m.
        B: an operator or a matrix, n x n. A class whose own operators are A and C has B = C^T.
        form: "stein" or "sylvester".

    >>> import torch
    >>> from torchldr.operators import Shift
    >>> from torchldr.algebra import displacement
    >>> T = torch.tensor([[1.0, 2.0, 3.0], [4.0, 1.0, 2.0], [5.0, 4.0, 1.0]])
    >>> displacement(T, Shift(3), Shift(3).T)
    tensor([[1., 2., 3.],
            [4., 0., 0.],
            [5., 0., 0.]])
    """
    left, right = checked_operators("displacement", M, A, B, form)
    return displacement_of_dense(dense(M), left, right, form)


def displacement_rank(
    M: Matrix, A: Operator | Tensor, B: Operator | Tensor, tol: float | None = None, form: Form = "stein"
) -> int:
    """The rank of `displacement(M, A, B, form)`.

    Args:
        tol: singular values above `tol` times a size count. The size is |M| + |A M B| or |A M| + |M B| in the
            Frobenius norm; for a structured matrix with operators near A and B it is that of the generators,
            and no dense matrix is made. By default the larger side times the rounding unit.
    """
    return generators(M, A, B, tol, form)[0].shape[0]


def generators(
    M: Matrix, A: Operator | Tensor, B: Operator | Tensor, tol: float | None = None, form: Form = "stein"
) -> Generators:
    """G (r, m) and H (r, n) with the fewest rows such that the displacement of M is G^T H.

    Arguments as for `displacement_rank`. The rows of G and of H are orthogonal, and each pair shares the
    square root of a singular value. Differentiable in M, A and B.
    """
    left, right = checked_operators("generators", M, A, B, form)
    known = displaced(M, left, right, form) if isinstance(M, LinearMap) else None
    if known is not None and worthwhile(known.rank, 1, *M.shape):
        return reduce(*known.generators(), tol)
    W = dense(M)
    R = displacement_of_dense(W, left, right, form)
    with torch.no_grad():
        W, moved = W.detach(), (R - W if form == "stein" else right.rmatmul(W))
        size = torch.linalg.norm(W if form == "stein" else left @ W) + torch.linalg.norm(moved)
    return factored(R, tol, size)


def from_displacement(
    A: Operator | Tensor, B: Operator | Tensor, G: Tensor, H: Tensor, form: Form = "stein"
) -> Tensor:
    """The matrix whose displacement is G^T H, dense: the inverse of `generators`.

    M - A M B = G^T H has one solution if no product of an eigenvalue of A and one of B is 1, and
    A M - M B = G^T H has one if A and B share no eigenvalue. For a nilpotent A or B it is a sum of products
    of Krylov matrices, for diagonal operators a division. Otherwise one operator is diagonalised and the
    result refined. Differentiable in all four arguments.

    Args:
        A: an operator or a matrix, m x m.
        B: an operator or a matrix, n x n.
        G: shape (r, m).
        H: shape (r, n).
        form: "stein" or "sylvester".

    Raises:
        ValueError: if the spectra meet (the message names the closest pair of eigenvalues), or if the
            result's residual is not small.
    """
    for name, t in (("G", G), ("H", H)):
        if t.ndim != 2:
            raise ValueError(f"from_displacement: {name} must have two axes, got shape {tuple(t.shape)}.")
    if G.shape[0] != H.shape[0]:
        raise ValueError(
            f"from_displacement: G and H must have equally many rows, got {G.shape[0]} and {H.shape[0]}."
        )
    left, right = _checked("from_displacement", (G.shape[1], H.shape[1]), A, B, form)
    return solve_displacement_equation(left, right, G, H, form)


def dense(M: Matrix) -> Tensor:
    return M if isinstance(M, Tensor) else M.to_dense()


def checked_operators(
    who: str, M: Matrix, A: Operator | Tensor, B: Operator | Tensor, form: str
) -> tuple[Operator, Operator]:
    """A and B as operators that fit one matrix, or an error."""
    if not isinstance(M, Tensor | LinearMap):
        raise TypeError(f"{who}: M must be a tensor or a linear map, got {type(M).__name__}.")
    if len(M.shape) != 2:
        raise ValueError(f"{who}: M must have two axes, got shape {tuple(M.shape)}.")
    return _checked(who, (M.shape[0], M.shape[1]), A, B, form)


def _checked(
    who: str, shape: tuple[int, int], A: Operator | Tensor, B: Operator | Tensor, form: str
) -> tuple[Operator, Operator]:
    check_choices(who, form=(form, FORMS))
    left, right = (DenseOperator(op) if isinstance(op, Tensor) else op for op in (A, B))
    for name, operator, size in (("A", left, shape[0]), ("B", right, shape[1])):
        if not isinstance(operator, Operator):
            raise TypeError(f"{who}: {name} must be an Operator or a tensor, got {type(operator).__name__}.")
        if operator.n != size:
            raise ValueError(
                f"{who}: {name} must be {size} x {size} for a matrix of {shape[0]} x {shape[1]}, "
                f"got {operator.n} x {operator.n}."
            )
    return left, right
