"""Classes that are closed under an operation, and what the result's tensors are.

A rule returns None where it does not apply. Sums share the operators of both matrices only where these are
one and the same tensors, or equal ones that no gradient is asked of: the lazy sum is right for others.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from ...core.linear_map import LinearMap, Number
from ...core.matrix import StructuredMatrix
from ...core.rules import apply, rule
from ..acdc import ACDC
from ..block_circulant import BlockCirculant
from ..cauchy_like import CauchyLike
from ..circulant import Circulant
from ..dense import Dense
from ..fastfood import Fastfood
from ..hankel_like import HankelLike
from ..ldr_sd import LDRSubdiagonal
from ..ldr_td import LDRTridiagonal
from ..low_rank import LowRank
from ..toeplitz_like import ToeplitzLike, corner_sign
from ..vandermonde_like import VandermondeLike
from .multiply import multiply, rmultiply
from .operators import Diagonal

Member = TypeVar("Member", bound=StructuredMatrix)

GENERATED = (LowRank, ToeplitzLike, HankelLike, VandermondeLike, CauchyLike, LDRSubdiagonal, LDRTridiagonal)
LINEAR = (Dense, Circulant, BlockCirculant)  # linear in their one tensor
EVERY = (*GENERATED, *LINEAR, Fastfood, ACDC)


def _like(M: Member, **tensors: Tensor) -> Member:
    """The same matrix with some tensors exchanged."""
    return M.unchecked(M.out_features, M.in_features, {**M.tensors, **tensors}, M.options)


def _shared(M: StructuredMatrix, N: StructuredMatrix, but: tuple[str, ...]) -> bool:
    """Whether options and all other tensors are the same, so that one matrix may hold them for both."""
    if M.options != N.options or M.dtype != N.dtype or M.device != N.device:
        return False
    pairs = [(t, N.tensors[name]) for name, t in M.tensors.items() if name not in but]
    fixed = all(t is u or not (t.requires_grad or u.requires_grad) for t, u in pairs)
    return fixed and all(t is u or torch.equal(t, u) for t, u in pairs)


# Multiples: every class is multilinear in the tensors that carry its scale.


def _scaled(M: StructuredMatrix, scalar: Number) -> StructuredMatrix | None:
    if isinstance(scalar, complex) or (isinstance(scalar, Tensor) and scalar.is_complex()):
        return None
    name = M.scaled[0]
    return _like(M, **{name: scalar * M.tensors[name]})


for _class in EVERY:
    rule("scale", _class)(_scaled)


# Sums.


def _sum_of_generated(M: StructuredMatrix, N: StructuredMatrix) -> StructuredMatrix | None:
    """M is linear in G^T H: generators go under each other, while a class admits their number."""
    if not _shared(M, N, ("G", "H")) or M.G.shape[0] + N.G.shape[0] > min(M.shape):
        return None
    return _like(M, G=torch.cat((M.G, N.G)), H=torch.cat((M.H, N.H)))


def _sum_of_linear(M: StructuredMatrix, N: StructuredMatrix) -> StructuredMatrix | None:
    name = M.scaled[0]
    if M.tensors[name].shape != N.tensors[name].shape or not _shared(M, N, (name,)):
        return None
    return _like(M, **{name: M.tensors[name] + N.tensors[name]})


for _class in GENERATED:
    rule("add", _class, _class)(_sum_of_generated)
for _class in LINEAR:
    rule("add", _class, _class)(_sum_of_linear)


# Transposes.


@rule("transpose", Dense)
def _(M: Dense) -> Dense:
    return Dense.unchecked(M.in_features, M.out_features, {"weight": M.weight.mT}, M.options)


@rule("transpose", LowRank)
def _(M: LowRank) -> LowRank:
    return LowRank.unchecked(M.in_features, M.out_features, {"G": M.H, "H": M.G}, M.options)


@rule("transpose", Circulant)
def _(M: Circulant) -> Circulant:
    return Circulant.unchecked(M.in_features, M.out_features, {"column": _reversed(M.column)}, M.options)


@rule("transpose", BlockCirculant)
def _(M: BlockCirculant) -> BlockCirculant:
    column = _reversed(M.column).transpose(0, 1)
    return BlockCirculant.unchecked(M.in_features, M.out_features, {"column": column}, M.options)


@rule("transpose", CauchyLike)
def _(M: CauchyLike) -> CauchyLike:
    tensors = {"G": -M.H, "H": M.G, "s": M.t, "t": M.s}
    return CauchyLike.unchecked(M.in_features, M.out_features, tensors, M.options)


@rule("transpose", ToeplitzLike)
def _(M: ToeplitzLike) -> ToeplitzLike | None:
    m, n = M.shape
    if corner_sign(m, n) == corner_sign(n, m):  # the class of n x m has these operators the other way round
        return None
    return ToeplitzLike.unchecked(n, m, {"G": M.H, "H": M.G}, M.options)


def _exchanged(M: LDRSubdiagonal | LDRTridiagonal) -> StructuredMatrix:
    def other(name: str) -> str:
        return {"G": "H", "H": "G"}.get(name) or name[:-1] + {"A": "C", "C": "A"}[name[-1]]

    return M.unchecked(
        M.in_features, M.out_features, {other(name): t for name, t in M.tensors.items()}, M.options
    )


rule("transpose", LDRSubdiagonal)(_exchanged)
rule("transpose", LDRTridiagonal)(_exchanged)


def _reversed(column: Tensor) -> Tensor:
    """c_{-i}: the first column of a circulant matrix's transpose."""
    return column.flip(-1).roll(1, -1)


# Products.


@rule("matmul", Dense, Dense)
def _(M: Dense, N: Dense) -> Dense | None:
    if M.dtype != N.dtype:
        return None
    return Dense.unchecked(M.out_features, N.in_features, {"weight": M.weight @ N.weight}, M.options)


@rule("matmul", Circulant, Circulant)
def _(M: Circulant, N: Circulant) -> Circulant | None:
    """Crops of whole circulant matrices multiply as those where nothing is cropped between them."""
    size = M.in_features
    whole = size == max(M.shape) == max(N.shape) == max(M.out_features, N.in_features)
    if not whole or M.dtype != N.dtype:
        return None
    full = Circulant.unchecked(size, size, M.tensors, M.options)
    return Circulant.unchecked(M.out_features, N.in_features, {"column": full.matmul(N.column)}, M.options)


@rule("matmul", BlockCirculant, BlockCirculant)
def _(M: BlockCirculant, N: BlockCirculant) -> BlockCirculant | None:
    rows, middle, b = M.column.shape
    fits = N.column.shape[-1] == b and M.in_features % b == 0 and b <= max(M.out_features, N.in_features)
    if not fits or M.dtype != N.dtype:
        return None
    options = {"block_size": b}
    full = BlockCirculant.unchecked(rows * b, middle * b, M.tensors, options)
    columns = full.matmul(N.column.transpose(0, 1).flatten(1))  # the first of each column of blocks
    column = columns.unflatten(-1, (rows, b)).transpose(0, 1)
    return BlockCirculant.unchecked(M.out_features, N.in_features, {"column": column}, options)


@rule("matmul", LowRank, LinearMap)
def _(M: LowRank, N: LinearMap) -> LowRank | None:
    if N.dtype.is_complex or M.G.shape[0] > min(M.out_features, N.in_features):
        return None
    return LowRank.unchecked(M.out_features, N.in_features, {"G": M.G, "H": rmultiply(N, M.H)}, M.options)


@rule("matmul", LinearMap, LowRank)
def _(M: LinearMap, N: LowRank) -> LowRank | None:
    if M.dtype.is_complex or N.G.shape[0] > min(M.out_features, N.in_features):
        return None
    return LowRank.unchecked(M.out_features, N.in_features, {"G": multiply(M, N.G), "H": N.H}, N.options)


@rule("matmul", LowRank, LowRank)
def _(M: LowRank, N: LowRank) -> LowRank | None:
    """The smaller rank stays."""
    left = M.G.shape[0] <= N.G.shape[0]
    first, second = (M, N) if left else (N, M)
    if first.G.shape[0] > min(M.out_features, N.in_features) or first.dtype != second.dtype:
        return None
    tensors = {"G": M.G, "H": N.rmatmul(M.H)} if left else {"G": M.matmul(N.G), "H": N.H}
    return LowRank.unchecked(M.out_features, N.in_features, tensors, M.options)


# Products with a diagonal. D K(A, g) = K(D A D^-1, D g), and D A D^-1 is subdiagonal or tridiagonal as A is:
# diagonally scaled Toeplitz-like matrices are LDR-SD.

_ROWS: dict[type, str] = {
    LowRank: "G",
    VandermondeLike: "G",
    CauchyLike: "G",
    Dense: "weight",
    ACDC: "A",
    Fastfood: "S",
}
_COLUMNS: dict[type, str] = {LowRank: "H", CauchyLike: "H", Dense: "weight", Fastfood: "B"}


def _rows_scaled(D: Diagonal, M: StructuredMatrix) -> StructuredMatrix | None:
    name = _ROWS[type(M)]
    d = D.d.unsqueeze(-1) if name == "weight" else D.d
    return None if D.d.is_complex() else _like(M, **{name: d.to(M.dtype) * M.tensors[name]})


def _columns_scaled(M: StructuredMatrix, D: Diagonal) -> StructuredMatrix | None:
    name = _COLUMNS[type(M)]
    return None if D.d.is_complex() else _like(M, **{name: M.tensors[name] * D.d.to(M.dtype)})


for _kind in _ROWS:
    rule("matmul", Diagonal, _kind)(_rows_scaled)
for _kind in _COLUMNS:
    rule("matmul", _kind, Diagonal)(_columns_scaled)


def _scaled_side(M: LDRSubdiagonal | LDRTridiagonal, D: Diagonal, side: str) -> StructuredMatrix | None:
    """The generators of one side times D, and its operator between D and D^-1."""
    if D.d.is_complex() or M.options.get("normalize") or bool((D.d == 0).any()):
        return None
    d, name = D.d.to(M.dtype), "G" if side == "A" else "H"
    up = d[1:] / d[:-1]
    tensors = {name: d * M.tensors[name], f"subdiagonal_{side}": up * M.tensors[f"subdiagonal_{side}"]}
    if isinstance(M, LDRTridiagonal):
        around = torch.stack((d[0] / d[-1], d[-1] / d[0]))
        tensors[f"superdiagonal_{side}"] = M.tensors[f"superdiagonal_{side}"] / up
        tensors[f"corners_{side}"] = around * M.tensors[f"corners_{side}"]
    else:
        tensors[f"corner_{side}"] = M.tensors[f"corner_{side}"] * d[0] / d[-1]
    return _like(M, **tensors)


def _rows_conjugated(D: Diagonal, M: LDRSubdiagonal | LDRTridiagonal) -> StructuredMatrix | None:
    return _scaled_side(M, D, "A")


def _columns_conjugated(M: LDRSubdiagonal | LDRTridiagonal, D: Diagonal) -> StructuredMatrix | None:
    return _scaled_side(M, D, "C")


for _kind in (LDRSubdiagonal, LDRTridiagonal):
    rule("matmul", Diagonal, _kind)(_rows_conjugated)
    rule("matmul", _kind, Diagonal)(_columns_conjugated)


@rule("matmul", Diagonal, ToeplitzLike)
def _(D: Diagonal, M: ToeplitzLike) -> LinearMap:
    return D @ as_subdiagonal(M)


@rule("matmul", ToeplitzLike, Diagonal)
def _(M: ToeplitzLike, D: Diagonal) -> LinearMap:
    return as_subdiagonal(M) @ D


@rule("matmul", Diagonal, Diagonal)
def _(D: Diagonal, E: Diagonal) -> Diagonal:
    return Diagonal(D.d * E.d)


def as_subdiagonal(M: ToeplitzLike) -> LDRSubdiagonal:
    """The same Toeplitz-like matrix in the class that learns its operators."""
    m, n = M.shape
    a = corner_sign(m, n)
    tensors = {"G": M.G, "H": M.H}
    for side, size, corner in (("A", m, a), ("C", n, -a)):
        tensors[f"subdiagonal_{side}"] = torch.ones(size - 1, dtype=M.dtype, device=M.device)
        tensors[f"corner_{side}"] = torch.tensor([float(corner)], dtype=M.dtype, device=M.device)
    return LDRSubdiagonal.unchecked(m, n, tensors, LDRSubdiagonal.check_options({}))


# Inverses.


@rule("inverse", Circulant)
def _(M: Circulant) -> Circulant:
    """The inverse's first column solves for the first unit vector."""
    unit = torch.zeros(M.out_features, 1, dtype=M.dtype, device=M.device)
    unit[0] = 1
    return _like(M, column=apply("solve", LinearMap, M, b=unit).squeeze(-1))
