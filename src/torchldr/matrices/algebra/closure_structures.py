"""What each structured class knows of its displacement.

    toeplitz_like       Z_a, Z_{-a}^T       r       circulant           Z_1, Z_1^T      0, cropped 1
    hankel_like         Z_a^T, Z_{-a}^T     r       block_circulant     blocks of Z_1   0, cropped 1 or 2
    ldr_sd              subdiagonal         r       vandermonde_like    nodes, Z_0^T    r
    ldr_td              tridiagonal         2r      cauchy_like         s, t            r  (Sylvester)
    low_rank            0, 0                r       an operator         Z_1, Z_1^T      its changing entries

`dense`, `fastfood` and `acdc` claim nothing. A class of one's own that has `operators()` is found by them.
The Krylov classes telescope: M - A M C^T = G^T H - A^k (G^T H) (C^k)^T, and for a subdiagonal operator of
size k the k-th power is a multiple of the identity.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.linear_map import LinearMap
from ...core.matrix import StructuredMatrix
from ...core.rules import rule
from ..block_circulant import BlockCirculant
from ..cauchy_like import CauchyLike
from ..circulant import Circulant
from ..hankel_like import HankelLike
from ..ldr_sd import LDRSubdiagonal
from ..ldr_td import LDRTridiagonal
from ..low_rank import LowRank
from ..toeplitz_like import ToeplitzLike, corner_sign
from ..vandermonde_like import VandermondeLike
from .multiply import rmultiply
from .operators import (
    BlockDiagonal,
    DenseOperator,
    Diagonal,
    Entries,
    Operator,
    Shift,
    Subdiagonal,
    Tridiagonal,
    low_rank_sum,
    sparse_product,
)
from .structure import Displacement, Form, Generators


def shift(n: int, f: float, like: LinearMap) -> Shift:
    return Shift(n, f, dtype=like.dtype, device=like.device)


def _units(size: int, places: list[int], like: LinearMap) -> Tensor:
    unit = torch.zeros(len(places), size, dtype=like.dtype, device=like.device)
    unit[range(len(places)), places] = 1
    return unit


def toeplitz_generators(M: ToeplitzLike) -> Generators:
    """Of M - Z_a M Z_{-a}^T, for the Toeplitz-like matrix with these G and H."""
    m, n = M.shape
    a = corner_sign(m, n)
    if m <= n:  # Z_a^m = a
        return M.G, M.H - a * (shift(n, -a, M) ** m).matmul(M.H)
    return M.G + a * (shift(m, a, M) ** n).matmul(M.G), M.H


@rule("displacement_structure", ToeplitzLike)
def _(M: ToeplitzLike) -> Displacement:
    (m, n), r = M.shape, M.G.shape[0]
    a = corner_sign(m, n)
    return Displacement(shift(m, a, M), shift(n, -a, M).T, "stein", r, lambda: toeplitz_generators(M))


@rule("displacement_structure", HankelLike)
def _(M: HankelLike) -> Displacement:
    (m, n), r = M.shape, M.G.shape[0]
    a = corner_sign(m, n)

    def make() -> Generators:
        G, H = toeplitz_generators(M)
        return G.flip(-1), H

    return Displacement(shift(m, a, M).T, shift(n, -a, M).T, "stein", r, make)


@rule("displacement_structure", LDRSubdiagonal)
def _(M: LDRSubdiagonal) -> Displacement:
    m, n = M.shape
    A, C = Subdiagonal(M.subdiagonal_A, M.corner_A), Subdiagonal(M.subdiagonal_C, M.corner_C)

    def make() -> Generators:
        if m <= n:  # A^m is a multiple of the identity
            around = A.corner * M.subdiagonal_A.prod()
            return M.G, M.H - around * (C**m).matmul(M.H)
        around = C.corner * M.subdiagonal_C.prod()
        return M.G - around * (A**n).matmul(M.G), M.H

    return Displacement(A, C.T, "stein", M.G.shape[0], make)


@rule("displacement_structure", LDRTridiagonal)
def _(M: LDRTridiagonal) -> Displacement:
    def operator(lower: Tensor, diagonal: Tensor, upper: Tensor) -> Operator:
        return Tridiagonal(lower[1:], diagonal, upper[:-1], torch.stack((lower[0], upper[-1])))

    A, C, k = operator(*M._ring("A")), operator(*M._ring("C")), min(M.shape)
    return Displacement(A, C.T, "stein", 2 * M.G.shape[0], lambda: _telescoped(A, C, M.G, M.H, k))


def _telescoped(A: Operator, C: Operator, G: Tensor, H: Tensor, k: int) -> Generators:
    return torch.cat((G, -(A**k).matmul(G))), torch.cat((H, (C**k).matmul(H)))


@rule("displacement_structure", VandermondeLike)
def _(M: VandermondeLike) -> Displacement:
    C = shift(M.in_features, 0.0, M)
    return Displacement(Diagonal(M.nodes), C.T, "stein", M.G.shape[0], lambda: (M.G, M.H))


@rule("displacement_structure", CauchyLike)
def _(M: CauchyLike) -> Displacement:
    return Displacement(Diagonal(M.s), Diagonal(M.t), "sylvester", M.G.shape[0], lambda: (M.G, M.H))


@rule("displacement_structure", LowRank)
def _(M: LowRank) -> Displacement:
    A, B = (Diagonal(torch.zeros(size, dtype=M.dtype, device=M.device)) for size in M.shape)
    return Displacement(A, B, "stein", M.G.shape[0], lambda: (M.G, M.H))


@rule("displaced", LowRank)
def _(M: LowRank, own: Displacement | None, A: Operator, B: Operator, form: Form) -> Displacement:
    """By any operators: G^T H - (A G^T)(H B), or (A G^T) H - G^T (H B)."""
    if form == "stein" and _is_zero(A) and own is not None:
        return Displacement(A, B, form, own.rank, own.make)

    def make() -> Generators:
        G, H, AG, HB = M.G, M.H, A.matmul(M.G), B.rmatmul(M.H)
        if form == "stein":
            return torch.cat((G, -AG)), torch.cat((H, HB))
        return torch.cat((AG, -G)), torch.cat((H, HB))

    return Displacement(A, B, form, 2 * M.G.shape[0], make)


def _is_zero(A: Operator) -> bool:
    return not bool(A.entries().values.any())


@rule("displacement_structure", Circulant)
def _(M: Circulant) -> Displacement:
    """A whole circulant matrix commutes with Z_1; a cropped one breaks that in its first row or column."""
    m, n = M.shape

    def make() -> Generators:
        c = M.column
        if m > n:
            return (c - c.roll(n)).unsqueeze(0), _units(n, [0], M)
        if m < n:
            row = c.flip(0).roll(1)  # c_{-j}
            return _units(m, [0], M), (row - row.roll(m)).unsqueeze(0)
        return c.new_zeros(0, m), c.new_zeros(0, n)

    return Displacement(shift(m, 1.0, M), shift(n, 1.0, M).T, "stein", int(m != n), make)


@rule("displacement_structure", BlockCirculant)
def _(M: BlockCirculant) -> Displacement:
    """As circulant in every block: only the last row and column of blocks may be cropped."""
    b = M.column.shape[-1]
    A, C = (_blocks_of_shifts(size, b, M) for size in M.shape)
    broken_row, broken_column = ([size - size % b] if size % b else [] for size in M.shape)

    def make() -> Generators:
        rows = _units(M.out_features, broken_row, M)
        across = rmultiply(M, rows) - C.matmul(rmultiply(M, A.rmatmul(rows)))
        columns = _units(M.in_features, broken_column, M)
        down = M.matmul(columns) - A.matmul(M.matmul(C.rmatmul(columns)))
        down = down - rows.sum(0) * down  # the place where both meet is in the row
        return torch.cat((rows, down)), torch.cat((across, columns))

    return Displacement(A, C.T, "stein", len(broken_row) + len(broken_column), make)


def _blocks_of_shifts(size: int, b: int, like: LinearMap) -> Operator:
    sizes = [b] * (size // b) + ([size % b] if size % b else [])
    return BlockDiagonal([shift(n, 1.0, like) for n in sizes])


@rule("displacement_structure", LinearMap)
def _(M: LinearMap) -> Displacement | None:
    """Operators as matrices, and classes of one's own."""
    if isinstance(M, Operator):
        return _of_operator(M)
    found = M.operators() if isinstance(M, StructuredMatrix) else None
    if not isinstance(M, StructuredMatrix) or found is None:
        return None
    A, C = (DenseOperator(operator) for operator in found)

    def make() -> Generators:
        factors = M.factors()
        G = torch.stack([left[:, 0] for left, _ in factors])
        H = torch.stack([right[0] for _, right in factors])
        return _telescoped(A, C, G, H, M.krylov_length())

    return Displacement(A, C.T, "stein", 2 * len(M.factors()), make)


def _of_operator(M: Operator) -> Displacement | None:
    """M - Z_1 M Z_1^T, sparse as M is, of low rank where M changes little along its diagonals."""
    Z, entries, n = shift(M.n, 1.0, M), M.entries(), M.n
    moved = sparse_product(sparse_product(Z.entries(), entries, n), Z.T.entries(), n)
    both = (torch.cat(pair) for pair in zip(entries, moved._replace(values=-moved.values), strict=True))
    found = low_rank_sum(Entries(*both), n)
    if 2 * found.rank > n:
        return None

    def make() -> Generators:
        U, V = found.factors()
        return U.to(M.dtype), V.to(M.dtype)

    return Displacement(Z, Z.T, "stein", found.rank, make)
