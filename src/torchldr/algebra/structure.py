"""The known displacement of a matrix: its operators, a bound of its rank, its generators.

    form "stein"        M - A M B = G^T H
    form "sylvester"    A M - M B = G^T H,      G is r x m, H is r x n

G and H are computed on demand, by fast products only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ..operators import Operator
from .multiply import real_dtype

Form = Literal["stein", "sylvester"]
FORMS = ("stein", "sylvester")
Generators = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class DisplacementStructure:
    """A displacement of low rank.

    Attributes:
        A, B: the operators, m x m and n x n; a class whose operators are A and C has B = C^T.
        form: "stein" for M - A M B, "sylvester" for A M - M B.
        rank: a bound of the rank; the generators from the rules have this many rows.
        make: computes the generators (G, H).
    """

    A: Operator
    B: Operator
    form: Form
    rank: int
    make: Callable[[], Generators]

    def generators(self) -> Generators:
        """G (r, m) and H (r, n) from the rules; r is `rank`."""
        G, H = self.make()
        dtype = torch.promote_types(G.dtype, H.dtype)
        return G.to(dtype), H.to(dtype)

    def of_dense(self, M: Tensor) -> Tensor:
        """The displacement of a dense matrix by these operators."""
        return displacement_of_dense(M, self.A, self.B, self.form)

    def reduced(self, tol: float | None = None) -> DisplacementStructure:
        """The same displacement with as few generators as the tolerance allows (see `reduce`)."""
        G, H = reduce(*self.make(), tol)
        return DisplacementStructure(self.A, self.B, self.form, G.shape[0], lambda: (G, H))

    def changed(self, change: Callable[[Tensor, Tensor], Generators], **fields: Any) -> DisplacementStructure:
        """The same rank with a function of these generators; `fields` are operators and form."""
        return replace(self, make=lambda: change(*self.make()), **fields)

    def transposed(self) -> DisplacementStructure:
        """The displacement of M^T: M^T - B^T M^T A^T = H^T G, or for Sylvester B^T M^T - M^T A^T = -H^T G."""
        stein = self.form == "stein"
        return self.changed(lambda G, H: (H if stein else -H, G), A=self.B.T, B=self.A.T)

    def scaled(self, scalar: float | complex | Tensor) -> DisplacementStructure:
        """The displacement of a multiple of M."""
        return self.changed(lambda G, H: (scalar * G, H))

    def inverted(self) -> DisplacementStructure | None:
        """The displacement by the inverses of both operators; None if one has no sparse inverse.

        M - A^-1 M B^-1 = -A^-1 (M - A M B) B^-1, and A^-1 M - M B^-1 = -A^-1 (A M - M B) B^-1.
        """
        A, B = sparse_inverse(self.A), sparse_inverse(self.B)
        if A is None or B is None:
            return None
        return self.changed(lambda G, H: (-A.matmul(G), B.rmatmul(H)), A=A, B=B)

    def in_form(self, form: Form) -> DisplacementStructure | None:
        """The displacement in the other form, by the inverse of one operator, if that is sparse.

        M - A M B = R is A M - M B^-1 = -R B^-1 and A^-1 M - M B = A^-1 R, and back again.
        """
        if form == self.form:
            return self
        if (B := sparse_inverse(self.B)) is not None:
            return self.changed(lambda G, H: (-G, B.rmatmul(H)), B=B, form=form)
        if (A := sparse_inverse(self.A)) is not None:
            return self.changed(lambda G, H: (A.matmul(G), H), A=A, form=form)
        return None

    def __repr__(self) -> str:
        shown = "M - A M B" if self.form == "stein" else "A M - M B"
        return f"DisplacementStructure({shown}, A={self.A!r}, B={self.B!r}, rank<={self.rank})"


def sparse_inverse(A: Operator) -> Operator | None:
    """The inverse of an operator with one entry a row, where dividing by these loses few digits.

    The condition number is the ratio of the largest entry (at least 1) to the smallest. Above eps^(-1/4), 8e3
    in float64, the result is None: a node of 6e-17, for instance, would lose all digits.
    """
    size = A.entries().values.detach().abs()
    size = size[size > 0]
    if size.shape[0] != A.n or size.max().clamp(min=1) > torch.finfo(size.dtype).eps ** -0.25 * size.min():
        return None
    try:
        return A.inverse()
    except (ValueError, NotImplementedError):
        return None


def displacement_of_dense(M: Tensor, A: Operator, B: Operator, form: Form) -> Tensor:
    """M - A M B or A M - M B of a dense matrix, by products with the operators."""
    if form == "stein":
        return M - B.rmatmul(A @ M)
    return A @ M - B.rmatmul(M)


def default_tolerance(dtype: torch.dtype, m: int, n: int) -> float:
    """max(m, n) times the rounding unit, as in `torch.linalg.matrix_rank`."""
    return max(m, n) * torch.finfo(real_dtype(dtype)).eps


def reduce(G: Tensor, H: Tensor, tol: float | None = None) -> Generators:
    """The fewest rows of G (r, m) and H (r, n) that keep G^T H to within a tolerance.

    Singular values of G^T H count if they exceed `tol` times sum_i |g_i| |h_i|, the size of its terms. By
    default `tol` is the larger side times the rounding unit. Cost: two QR factorisations and
    the SVD of an r x r matrix, O((m + n) r^2 + r^3).

    Differentiable: with the leading singular vectors U and V held fixed, R V (U^T R V)^-1 U^T R is R = G^T H
    to first order in changes of R that keep its rank. A derivative of the SVD itself would divide by
    differences of singular values.
    """
    dtype = torch.promote_types(torch.promote_types(G.dtype, H.dtype), torch.float32)
    G, H = G.to(dtype), H.to(dtype)
    r, m, n = *G.shape, H.shape[1]
    if r == 0:
        return G, H
    with torch.no_grad():
        left, L = torch.linalg.qr(G.mT)
        right, R = torch.linalg.qr(H.mT)
        u, s, v = torch.linalg.svd(L @ R.mT)
        size = (torch.linalg.vector_norm(G, dim=-1) * torch.linalg.vector_norm(H, dim=-1)).sum()
        tol = default_tolerance(dtype, m, n) if tol is None else tol
        kept = int((s > tol * size).sum())
        # Conjugates because G^T H has no conjugate while the SVD has: R = U s V^H with these two.
        U, V = left @ u[:, :kept], right.conj() @ v[:kept].mH
        root = s[:kept].sqrt()
    RV, UR = (H @ V).mT @ G, U.mH @ G.mT @ H
    core = U.mH @ RV.mT  # diag(s), with the right derivative
    # root core^-1 UR; core is diagonal in value, so this is a division that cannot fail.
    return RV / root.unsqueeze(-1), root.unsqueeze(-1) * torch.linalg.solve(core, UR)


def factored(R: Tensor, tol: float | None = None, size: Tensor | None = None) -> Generators:
    """G (r, m) and H (r, n) with the fewest rows such that G^T H is a dense R to within a tolerance.

    Singular values count if they exceed `tol` times `size`, by default the largest of them. The rows of G
    and of H are orthogonal. Differentiable as `reduce` is.
    """
    tol = default_tolerance(R.dtype, *R.shape) if tol is None else tol
    R = R.to(torch.promote_types(R.dtype, torch.float32))
    with torch.no_grad():
        u, s, vh = torch.linalg.svd(R, full_matrices=False)
        kept = int((s > tol * (s[:1] if size is None else size)).sum())
        U, V, root = u[:, :kept], vh[:kept].mH, s[:kept].sqrt().unsqueeze(-1)
    RV, UR = R @ V, U.mH @ R
    return RV.mT / root, root * torch.linalg.solve(U.mH @ RV, UR)
