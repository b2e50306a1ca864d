"""Closure rules: the displacement of a sum, a product, an inverse from those of the parts.

With M - A M B = R and N - A' N B' = S (Stein's form), or A M - M B = R and A' N - N B' = S (Sylvester's):

    sum       by (A, B)     R + S + (A' - A) N B' + A N (B' - B)         r + s + rank(A - A') + rank(B - B')
                            R + S + (A - A') N - N (B - B')
    product   by (A, B')    R N + A M B S - A M (I - B A') N B'          r + s + rank(I - B A')
                            R N + M S + M (B - A') N                     r + s + rank(B - A')
    inverse   by (B, A)     B M^-1 R B^-1 M^-1                           r
                            -M^-1 R M^-1

Operators match if their difference is 0. In Stein's form those of a product match if B is the inverse of A',
as the transpose of the shift Z_1 is. A displacement by A and B also gives one by their inverses, and in the
other form one by the inverse of either. The rules use the combination with the smallest rank.

Each term is a product of generators and a few other vectors with M, N and the operators, so there is no dense
matrix. A claim of a large rank is useless: one is made only if operators match, or if the generators hold no
more numbers than the matrix, (m + n) rank <= m n.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import rules
from ..core.linear_map import LinearMap
from ..operators import (
    Diagonal,
    Entries,
    LowRankSum,
    Operator,
    conjugated,
    difference,
    low_rank_sum,
    sparse_product,
)
from ..operators.compare import tolerance
from .multiply import multiply, real_dtype, rmultiply
from .structure import DisplacementStructure, Form, Generators, sparse_inverse

_OVERSAMPLE = 4  # vectors beyond the rank in a sketch, so that the best of them are well conditioned


def worthwhile(rank: int, extra: int, m: int, n: int) -> bool:
    """Whether to claim this rank; `extra` is the part from operators that do not match."""
    return extra == 0 or (m + n) * rank <= m * n


def displaced(
    M: LinearMap, A: Operator, B: Operator, form: Form, own: DisplacementStructure | None = None
) -> DisplacementStructure | None:
    """The displacement of M by other operators than its own, or None if the rules give none.

    `own` is the displacement structure of M, if the caller already has it.
    """
    own = M.displacement_structure() if own is None else own
    return rules.first("displaced", M, own=own, A=A, B=B, form=form)


@rules.rule("displaced", LinearMap)
def _(
    M: LinearMap, own: DisplacementStructure | None, A: Operator, B: Operator, form: Form
) -> DisplacementStructure | None:
    return min((changed(way, M, A, B) for way in _ways(own, form)), key=lambda d: d.rank, default=None)


def _ways(own: DisplacementStructure | None, form: Form) -> list[DisplacementStructure]:
    """The known displacements of a matrix in this form, by its operators and by their inverses."""
    same_form = None if own is None else own.in_form(form)
    inverted = None if same_form is None else same_form.inverted()
    return [d for d in (same_form, inverted) if d is not None]


def changed(own: DisplacementStructure, M: LinearMap, A: Operator, B: Operator) -> DisplacementStructure:
    """The displacement of M by A and B, from the one by its own operators."""
    left, right = _difference(own.A, A, M), _difference(own.B, B, M)
    extra = left.rank + right.rank
    if not extra:
        return DisplacementStructure(A, B, own.form, own.rank, own.make)

    def make() -> Generators:
        G, H = own.make()
        (U, V), (X, Y) = _factors(left, M), _factors(right, M)  # own.A - A = U^T V, own.B - B = X^T Y
        if own.form == "stein":  # R + (own.A - A) M own.B + A M (own.B - B)
            first, second = own.B.rmatmul(rmultiply(M, V)), A.matmul(multiply(M, X))
        else:  # R - (own.A - A) M + M (own.B - B)
            first, second = -rmultiply(M, V), multiply(M, X)
        return torch.cat([G, U, second]), torch.cat([H, first, Y])

    return DisplacementStructure(A, B, own.form, own.rank + extra, make)


def sum_structure(M: LinearMap, N: LinearMap) -> DisplacementStructure | None:
    """The displacement of M + N by the operators of M or of N, whichever give the smaller rank."""
    left, right = M.displacement_structure(), N.displacement_structure()
    if left is None or right is None:
        return None
    moved_right = displaced(N, left.A, left.B, left.form, right)
    moved_left = displaced(M, right.A, right.B, right.form, left)
    pairs = [(left, moved_right), (right, moved_left)]
    found = [_added(first, second) for first, second in pairs if second is not None]
    best = min(found, key=lambda d: d.rank, default=None)
    if best is None or not worthwhile(best.rank, best.rank - left.rank - right.rank, *M.shape):
        return None
    return best


def _added(first: DisplacementStructure, second: DisplacementStructure) -> DisplacementStructure:
    def make() -> Generators:
        (G, H), (P, Q) = first.make(), second.make()
        return torch.cat([G, P]), torch.cat([H, Q])

    return DisplacementStructure(first.A, first.B, first.form, first.rank + second.rank, make)


def product_structure(M: LinearMap, N: LinearMap) -> DisplacementStructure | None:
    """The displacement of M N, by the left operator of M and the right one of N."""
    if isinstance(M, Diagonal) and (scaled := _rows_scaled(M, N)) is not None:
        return scaled
    if isinstance(N, Diagonal) and (scaled := _rows_scaled(N, M.T)) is not None:
        return scaled.transposed()
    left, right = M.displacement_structure(), N.displacement_structure()
    if left is None or right is None:
        return None
    pairs = [(left, way) for way in _ways(right, left.form)] + [
        (way, right) for way in _ways(left, right.form)
    ]
    found = [_product_by(first, M, second, N) for first, second in pairs]
    best = min(found, key=lambda d: d.rank, default=None)
    if best is None or not worthwhile(best.rank, best.rank - left.rank - right.rank, best.A.n, best.B.n):
        return None
    return best


def _product_by(
    left: DisplacementStructure, M: LinearMap, right: DisplacementStructure, N: LinearMap
) -> DisplacementStructure:
    stein = left.form == "stein"
    gap = _gap_from_inverse(left.B, right.A, M) if stein else _difference(left.B, right.A, M)

    def make() -> Generators:
        (G, H), (P, Q), (U, V) = left.make(), right.make(), _factors(gap, M)
        if stein:
            A, B = left.A, right.B
            middle = A.matmul(multiply(M, left.B.matmul(P)))
            last, across = -A.matmul(multiply(M, U)), B.rmatmul(rmultiply(N, V))
        else:
            middle, last, across = multiply(M, P), multiply(M, U), rmultiply(N, V)
        return torch.cat([G, middle, last]), torch.cat([rmultiply(N, H), Q, across])

    return DisplacementStructure(left.A, right.B, left.form, left.rank + right.rank + gap.rank, make)


def _rows_scaled(D: Diagonal, M: LinearMap) -> DisplacementStructure | None:
    """The displacement of D M, by D A D^-1 and B: a diagonal costs no rank."""
    own = M.displacement_structure()
    A = None if own is None else conjugated(own.A, D)
    if own is None or A is None:
        return None
    return own.changed(lambda G, H: (D.matmul(G), H), A=A)


def inverse_structure(M: LinearMap, inverse: LinearMap) -> DisplacementStructure | None:
    """The displacement of M^-1, by the operators of M exchanged."""
    own = M.displacement_structure()
    if own is None:
        return None

    def make() -> Generators:
        G, H = own.make()
        if own.form == "sylvester":
            return -multiply(inverse, G), rmultiply(inverse, H)
        if (B := sparse_inverse(own.B)) is not None:
            return own.B.matmul(multiply(inverse, G)), rmultiply(inverse, B.rmatmul(H))
        if (A := sparse_inverse(own.A)) is not None:
            return multiply(inverse, A.matmul(G)), own.A.rmatmul(rmultiply(inverse, H))
        return sketched(DisplacementStructure(own.B, own.A, "stein", own.rank, lambda: (G, H)), inverse)

    return DisplacementStructure(own.B, own.A, own.form, own.rank, make)


def sketched(known: DisplacementStructure, M: LinearMap) -> Generators:
    """Generators of a Stein displacement of known rank, from its products with random vectors.

    S = M - A M B has rank at most r, so S = S X (Y^T S X)^-1 Y^T S for almost all X and Y with r columns.
    This draws a few more columns and keeps the best r combinations.
    """
    A, B, (m, n) = known.A, known.B, M.shape
    count = min(known.rank + _OVERSAMPLE, m, n)
    generator = torch.Generator().manual_seed(0)  # the same generators every time
    X, Y = (
        torch.randn(count, size, generator=generator, dtype=torch.float64, device="cpu").to(M.device, M.dtype)
        for size in (n, m)
    )
    SX = multiply(M, X) - A.matmul(multiply(M, B.matmul(X)))
    with torch.no_grad():
        u, s, vh = torch.linalg.svd(Y @ SX.mT)
        counted = s > s[:1] * count * torch.finfo(s.dtype).eps
        kept = min(known.rank, int(counted.sum()))
    G, Y = vh[:kept].conj() @ SX, u[:, :kept].mH @ Y
    H = rmultiply(M, Y) - B.rmatmul(rmultiply(M, A.rmatmul(Y)))
    return G, torch.linalg.solve(Y @ G.mT, H)


def _difference(A: Operator, B: Operator, like: LinearMap) -> LowRankSum:
    """A - B."""
    return low_rank_sum(difference(A, B), A.n, tolerance(A, B, _precision(like)))


def _gap_from_inverse(B: Operator, A: Operator, like: LinearMap) -> LowRankSum:
    """I - B A, which is 0 where B is the inverse of A."""
    rows, columns, values = sparse_product(B.entries(), A.entries(), A.n)
    i = torch.arange(A.n, device=rows.device)
    ones = torch.ones(A.n, dtype=values.dtype, device=values.device)
    gap = Entries(torch.cat((rows, i)), torch.cat((columns, i)), torch.cat((-values, ones)))
    return low_rank_sum(gap, A.n, tolerance(A, B, _precision(like)))


def _precision(M: LinearMap) -> float:
    return torch.finfo(real_dtype(M.dtype)).eps


def _factors(of: LowRankSum, like: LinearMap) -> Generators:
    """The factors of a difference of operators, in the precision of a map."""

    def fit(t: Tensor) -> Tensor:
        real = real_dtype(like.dtype)
        return t.to(like.device, torch.promote_types(real, torch.complex32) if t.is_complex() else real)

    U, V = of.factors()
    return fit(U), fit(V)
