"""Common parts of the closure rules of the structured classes.

A rule returns None if it does not apply. A sum stays in the class only if both matrices have the same
operator tensors, or equal ones without gradients; other sums are lazy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..core.linear_map import LinearMap, Number
from ..core.matrix import StructuredMatrix
from ..core.rules import rule
from ..operators import (
    DenseOperator,
    Diagonal,
    Entries,
    Operator,
    Shift,
    Subdiagonal,
    conjugated,
    low_rank_sum,
    sparse_product,
)
from .known import Operators
from .multiply import real_dtype
from .structure import DisplacementStructure, Generators, reduce

Member = TypeVar("Member", bound=StructuredMatrix)


def like(M: Member, **tensors: Tensor) -> Member:
    """The same matrix with some tensors exchanged."""
    return M.with_tensors({**M.tensors, **tensors})


def member(cls: type[Member], M: LinearMap, generators: Generators, **fields: Any) -> Member:
    """The matrix of a class with these generators, in the shape and dtype of M."""
    G, H = (t.to(M.dtype) for t in at_least_one(*generators))
    return cls(M.out_features, M.in_features, G=G, H=H, **fields)


def shift(n: int, f: float, like: LinearMap) -> Shift:
    """Z_f in the dtype and on the device of a map."""
    return Shift(n, f, dtype=like.dtype, device=like.device)


def opposite_shifts(M: LinearMap) -> Operators:
    """Z_1 and Z_{-1} for the sides of a map."""
    m, n = M.shape
    return Operators(shift(m, 1.0, M), shift(n, -1.0, M))


def units(size: int, places: list[int], like: LinearMap) -> Tensor:
    """Unit vectors as rows."""
    unit = torch.zeros(len(places), size, dtype=like.dtype, device=like.device)
    unit[range(len(places)), places] = 1
    return unit


def telescoped(A: Operator, C: Operator, G: Tensor, H: Tensor, k: int) -> Generators:
    """Generators of M - A M C^T = G^T H - A^k (G^T H) (C^k)^T, for M = sum_i K_k(A, g_i) K_k(C, h_i)^T."""
    return torch.cat((G, -(A**k).matmul(G))), torch.cat((H, (C**k).matmul(H)))


@rule("scale", StructuredMatrix)
def _(M: StructuredMatrix, scalar: Number) -> StructuredMatrix | None:
    """A multiple of M. Every class is multilinear in the tensors that carry its scale."""
    if isinstance(scalar, complex) or (isinstance(scalar, Tensor) and scalar.is_complex()):
        return None
    name = M.scaled[0]
    return like(M, **{name: scalar * M.tensors[name]})


def linear_in_generators(cls: type[StructuredMatrix]) -> None:
    """Rules for a class that is linear in G^T H: sums stack generators, and recompression drops some."""
    rule("add", cls, cls)(_sum_of_generated)
    rule("recompress", cls)(_fewer)


def _sum_of_generated(M: StructuredMatrix, N: StructuredMatrix) -> StructuredMatrix | None:
    if not _shared(M, N, ("G", "H")) or M.G.shape[0] + N.G.shape[0] > min(M.shape):
        return None
    return like(M, G=torch.cat((M.G, N.G)), H=torch.cat((M.H, N.H)))


def _fewer(M: StructuredMatrix, tol: float | None, structure: str | None) -> StructuredMatrix | None:
    """The class keeps its operators: G^T H itself is reduced."""
    if structure not in (None, M.name):
        return None
    G, H = at_least_one(*reduce(M.G, M.H, tol))
    return like(M, G=G.to(M.dtype), H=H.to(M.dtype))


def linear_in_its_tensor(cls: type[StructuredMatrix]) -> None:
    """The rule of sums for a class that is linear in its one tensor."""
    rule("add", cls, cls)(_sum_of_linear)


def _sum_of_linear(M: StructuredMatrix, N: StructuredMatrix) -> StructuredMatrix | None:
    name = M.scaled[0]
    if M.tensors[name].shape != N.tensors[name].shape or not _shared(M, N, (name,)):
        return None
    return like(M, **{name: M.tensors[name] + N.tensors[name]})


def _shared(M: StructuredMatrix, N: StructuredMatrix, but: tuple[str, ...]) -> bool:
    """Whether options and all other tensors agree, so that one matrix can represent the sum."""
    if M.options != N.options or M.dtype != N.dtype or M.device != N.device:
        return False
    pairs = [(t, N.tensors[name]) for name, t in M.tensors.items() if name not in but]
    fixed = all(t is u or not (t.requires_grad or u.requires_grad) for t, u in pairs)
    return fixed and all(t is u or torch.equal(t, u) for t, u in pairs)


def scales_rows(cls: type[StructuredMatrix], name: str) -> None:
    """Rule D M: scale this tensor, whose last axis runs over the rows, perhaps repeatedly."""
    rule("matmul", Diagonal, cls)(lambda D, M: _with_scaled(M, name, D))


def scales_columns(cls: type[StructuredMatrix], name: str) -> None:
    """Rule M D: scale this tensor, whose last axis runs over the columns, perhaps repeatedly."""
    rule("matmul", cls, Diagonal)(lambda M, D: _with_scaled(M, name, D))


def _with_scaled(M: Member, name: str, D: Diagonal) -> Member | None:
    if D.d.is_complex():
        return None
    lines = M.tensors[name].unflatten(-1, (-1, D.n))
    return like(M, **{name: (lines * D.d.to(M.dtype)).flatten(-2)})


def scales_operators(cls: type[Member], kind: Callable[..., Operator], parts: Mapping[str, str]) -> None:
    """Rules D M and M D that scale a class's operators: D K(A, g) = K(D A D^-1, D g).

    The class has tensors `G` and `H`, and parts of operators whose names end in `_A` and `_C`. `kind` makes
    an operator of these parts, in their order.
    """

    def with_diagonal(M: Member, D: Diagonal, side: str, generator: str) -> Member | None:
        if D.d.is_complex() or M.options.get("normalize"):
            return None
        D = Diagonal(D.d.to(M.dtype))
        old = {part: M.tensors[f"{part}_{side}"] for part in parts}
        new = conjugated(kind(*old.values()), D)
        if new is None:
            return None
        tensors = {f"{part}_{side}": getattr(new, parts[part]).reshape(t.shape) for part, t in old.items()}
        return like(M, **tensors, **{generator: D.d * M.tensors[generator]})

    rule("matmul", Diagonal, cls)(lambda D, M: with_diagonal(M, D, "A", "G"))
    rule("matmul", cls, Diagonal)(lambda M, D: with_diagonal(M, D, "C", "H"))


def sides_exchanged(M: Member) -> Member:
    """The transpose of a class with tensors `G`, `H` and `.._A`, `.._C`."""

    def other(name: str) -> str:
        return {"G": "H", "H": "G"}.get(name) or name[:-1] + {"A": "C", "C": "A"}[name[-1]]

    return M.unchecked(
        M.in_features, M.out_features, {other(name): t for name, t in M.tensors.items()}, M.options
    )


def as_subdiagonal(A: Operator) -> Subdiagonal | None:
    """A shift or subdiagonal operator as a subdiagonal one."""
    if isinstance(A, Shift):
        return Subdiagonal(torch.ones(A.n - 1, dtype=A.dtype, device=A.device), A.corner)
    return A if isinstance(A, Subdiagonal) else None


def krylov_displacement(G: Tensor, H: Tensor, left: Operator, right: Operator) -> Generators:
    """Generators of M - A M C^T for M = sum_i K(A, g_i) K(C, h_i)^T: the inverse of `krylov_generators`."""
    A, C = as_subdiagonal(left), as_subdiagonal(right)
    assert A is not None
    assert C is not None
    if A.n <= C.n:
        return G, H - A.corner * A.s.prod() * (right**A.n).matmul(H)
    return G - C.corner * C.s.prod() * (left**C.n).matmul(G), H


def krylov_generators(G: Tensor, H: Tensor, left: Operator, right: Operator) -> Generators | None:
    """G and H of sum_i K(A, g_i) K(C, h_i)^T, from those of its displacement by A and C^T.

    A and C are shifts or subdiagonal. The shorter operator, say A of size k, has A^k = f, so H of the class
    is (I - f C^k)^-1 H. With W = f C^k and L the length of the cycles of a shift by k, W^L = w is a multiple
    of the identity: (I - W)^-1 = (I + W + .. + W^{L-1}) / (1 - w). None where w is 1: then M is not
    determined.
    """
    if left.n > right.n:
        found = krylov_generators(H, G, right, left)
        return None if found is None else (found[1], found[0])
    A, C = as_subdiagonal(left), as_subdiagonal(right)
    assert A is not None
    assert C is not None
    k, n = A.n, C.n
    common = math.gcd(k, n)
    f, around = A.corner * A.s.prod(), C.corner * C.s.prod()
    length = n // common
    w = f**length * around ** (k // common)
    if bool((1 - w).abs() < 1e3 * torch.finfo(real_dtype(H.dtype)).eps):
        return None

    def geometric(terms: int) -> Tensor:
        if terms == 1:
            return H
        if terms % 2:
            return H + f * (C**k).matmul(geometric(terms - 1))
        half = geometric(terms // 2)
        return half + f ** (terms // 2) * (C ** (k * (terms // 2))).matmul(half)

    return G, geometric(length) / (1 - w)


def at_least_one(G: Tensor, H: Tensor) -> Generators:
    """At least one pair of generators, because a class needs one even for M = 0."""
    return (G, H) if G.shape[0] else (G.new_zeros(1, G.shape[1]), H.new_zeros(1, H.shape[1]))


# The displacement of operators, and of classes that only declare their operators.


@rule("displacement_structure", StructuredMatrix)
def _(M: StructuredMatrix) -> DisplacementStructure | None:
    found = M.operators()
    if found is None:
        return None
    A, C = (DenseOperator(operator) for operator in found)

    def make() -> Generators:
        factors = M.factors()
        G = torch.stack([left[:, 0] for left, _ in factors])
        H = torch.stack([right[0] for _, right in factors])
        return telescoped(A, C, G, H, M.krylov_length())

    return DisplacementStructure(A, C.T, "stein", 2 * len(M.factors()), make)


@rule("displacement_structure", Operator)
def _(M: Operator) -> DisplacementStructure | None:
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

    return DisplacementStructure(Z, Z.T, "stein", found.rank, make)


rule("matmul", Diagonal, Diagonal)(lambda D, E: Diagonal(D.d * E.d))
