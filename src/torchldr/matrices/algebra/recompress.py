"""Fewer generators, and the structured class that a displacement belongs to.

The closure rules bound ranks from above. `recompress` makes the generators, drops what they do not need
(two QR factorisations and a small SVD), and where the operators are those of a class gives its member:
that has one fast product where a chain of operations has many.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...core.linear_map import LinearMap
from ...core.matrix import StructuredMatrix
from ...core.registry import get_structure
from ...core.rules import rule
from ..cauchy_like import CauchyLike
from ..circulant import Circulant
from ..hankel_like import HankelLike
from ..ldr_sd import LDRSubdiagonal
from ..low_rank import LowRank
from ..toeplitz_like import ToeplitzLike, corner_sign
from ..vandermonde_like import VandermondeLike
from .closure import displaced
from .closure_classes import GENERATED
from .closure_structures import shift
from .multiply import multiply, real_dtype
from .operators import Diagonal, Operator, Shift, Subdiagonal, same
from .structure import Displacement, Generators, reduce

Member = TypeVar("Member", bound=StructuredMatrix)


class Recompressed(LinearMap):
    """A linear map with fewer generators: its products stay, what it knows of its displacement is less."""

    def __init__(self, of: LinearMap, known: Displacement) -> None:
        self.of, self.known = of, known
        self.out_features, self.in_features = of.out_features, of.in_features

    @property
    def dtype(self) -> torch.dtype:
        return self.of.dtype

    @property
    def device(self) -> torch.device:
        return self.of.device

    def matmul(self, x: Tensor) -> Tensor:
        return self.of.matmul(x)

    def rmatmul(self, y: Tensor) -> Tensor:
        return self.of.rmatmul(y)

    def to_dense(self) -> Tensor:
        return self.of.to_dense()

    def __repr__(self) -> str:
        return f"{self.of!r}.recompress()"


@rule("displacement_structure", Recompressed)
def _(M: Recompressed) -> Displacement:
    return M.known


def _fewer(M: StructuredMatrix, tol: float | None, structure: str | None) -> StructuredMatrix | None:
    """A class that is linear in G^T H keeps its operators: G^T H itself is reduced."""
    if structure not in (None, M.name):
        return None
    G, H = _at_least_one(*reduce(M.G, M.H, tol))
    return M.unchecked(
        M.out_features, M.in_features, {**M.tensors, "G": G.to(M.dtype), "H": H.to(M.dtype)}, M.options
    )


for _class in GENERATED:
    rule("recompress", _class)(_fewer)


@rule("recompress", LinearMap)
def _(M: LinearMap, tol: float | None, structure: str | None) -> LinearMap:
    if structure is not None:
        return _as_member(M, tol, structure)
    own = M._structure()
    known = own.reduced(tol)
    if M.dtype.is_complex:  # the classes are real
        return Recompressed(M, known)
    for way in (known, known.in_form("stein"), known.in_form("sylvester"), known.inverted()):
        for build in (_circulant, _low_rank, _toeplitz_like, _hankel_like, _vandermonde, _cauchy, _ldr_sd):
            found = None if way is None else build(M, way)
            if found is not None:
                return found
    for cls in (ToeplitzLike, HankelLike):
        near = _displaced_by_shifts(M, cls)
        if near is not None and near.rank <= own.rank + 2:  # a corner of each operator differs
            return _as_member(M, tol, cls.name)
    return Recompressed(M, known)


def _as_member(M: LinearMap, tol: float | None, structure: str) -> LinearMap:
    """A member of a class with fixed operators, whatever those of M are."""
    cls = get_structure(structure)
    if cls not in (ToeplitzLike, HankelLike):
        raise ValueError(
            f"recompress: structure must be 'toeplitz_like' or 'hankel_like', whose operators are fixed, "
            f"got {structure!r}; torchldr.from_dense projects onto the others."
        )
    known = _displaced_by_shifts(M, cls)
    if known is None:
        raise TypeError(f"{type(M).__name__} has no displacement operators near those of {structure!r}.")
    build = _toeplitz_like if cls is ToeplitzLike else _hankel_like
    found = build(M, known.reduced(tol))
    assert found is not None
    return found


def _displaced_by_shifts(M: LinearMap, cls: type[StructuredMatrix]) -> Displacement | None:
    m, n = M.shape
    a = corner_sign(m, n)
    A = shift(m, a, M)
    return displaced(M, A if cls is ToeplitzLike else A.T, shift(n, -a, M).T, "stein")


# Each of these gives the member of its class with a displacement, or None where the operators are others.


def _circulant(M: LinearMap, known: Displacement) -> Circulant | None:
    m, n = M.shape
    Z = shift(m, 1.0, M)
    if m != n or known.form != "stein" or known.rank or not (same(known.A, Z) and same(known.B, Z.T)):
        return None
    first = torch.zeros(n, dtype=M.dtype, device=M.device)
    first[0] = 1
    return Circulant(m, n, column=multiply(M, first))


def _low_rank(M: LinearMap, known: Displacement) -> LowRank | None:
    zero = [bool((op.entries().values == 0).all()) for op in (known.A, known.B)]
    return _member(LowRank, M, known.generators()) if known.form == "stein" and any(zero) else None


def _toeplitz_like(M: LinearMap, known: Displacement) -> ToeplitzLike | None:
    m, n = M.shape
    a = corner_sign(m, n)
    A, C = shift(m, a, M), shift(n, -a, M)
    if known.form != "stein" or not (same(known.A, A) and same(known.B, C.T)):
        return None
    found = krylov_generators(*known.generators(), _subdiagonal(A), _subdiagonal(C))
    return None if found is None else _member(ToeplitzLike, M, found)


def _hankel_like(M: LinearMap, known: Displacement) -> HankelLike | None:
    m, n = M.shape
    a = corner_sign(m, n)
    A, C = shift(m, a, M), shift(n, -a, M)
    if known.form != "stein" or not (same(known.A, A.T) and same(known.B, C.T)):
        return None
    G, H = known.generators()
    found = krylov_generators(G.flip(-1), H, _subdiagonal(A), _subdiagonal(C))
    return None if found is None else _member(HankelLike, M, found)


def _vandermonde(M: LinearMap, known: Displacement) -> VandermondeLike | None:
    nilpotent = Shift(M.in_features, 0.0).T
    if not (isinstance(known.A, Diagonal) and known.form == "stein" and same(known.B, nilpotent)):
        return None
    nodes = known.A.d.to(M.dtype)
    return _member(VandermondeLike, M, known.generators(), nodes=nodes, learn_nodes=True)


def _cauchy(M: LinearMap, known: Displacement) -> CauchyLike | None:
    if not (isinstance(known.A, Diagonal) and isinstance(known.B, Diagonal) and known.form == "sylvester"):
        return None
    s, t = known.A.d, known.B.d
    if s.is_complex() or t.is_complex() or bool(torch.isin(s, t).any()):
        return None
    nodes = {"s": s.to(M.dtype), "t": t.to(M.dtype)}
    return _member(CauchyLike, M, known.generators(), **nodes, learn_nodes=True)


def _ldr_sd(M: LinearMap, known: Displacement) -> LDRSubdiagonal | None:
    A, C = _weights(known.A), _weights(known.B.T)
    if known.form != "stein" or A is None or C is None or A.dtype.is_complex or C.dtype.is_complex:
        return None
    found = krylov_generators(*known.generators(), A, C)
    if found is None:
        return None
    sides = {
        f"{part}_{side}": t.to(M.dtype)
        for side, X in (("A", A), ("C", C))
        for part, t in (("subdiagonal", X.s), ("corner", X.corner.reshape(1)))
    }
    return _member(LDRSubdiagonal, M, found, **sides)


def _subdiagonal(A: Shift) -> Subdiagonal:
    return Subdiagonal(torch.ones(A.n - 1, dtype=A.dtype, device=A.device), A.corner)


def _weights(A: Operator) -> Subdiagonal | None:
    """A shift or subdiagonal operator as the latter."""
    return _subdiagonal(A) if isinstance(A, Shift) else A if isinstance(A, Subdiagonal) else None


def krylov_generators(G: Tensor, H: Tensor, A: Subdiagonal, C: Subdiagonal) -> Generators | None:
    """G and H of sum_i K(A, g_i) K(C, h_i)^T, from those of its displacement by A and C^T.

    The shorter operator, say A of size k, has A^k = f, so H of the class is (I - f C^k)^-1 H. With
    W = f C^k and L the length of the cycles of a shift by k, W^L = w is a multiple of the identity:
    (I - W)^-1 = (I + W + .. + W^{L-1}) / (1 - w). None where w is 1: then M is not determined.
    """
    if A.n > C.n:
        found = krylov_generators(H, G, C, A)
        return None if found is None else (found[1], found[0])
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


def _at_least_one(G: Tensor, H: Tensor) -> Generators:
    """A class holds one pair of generators even where none is needed."""
    return (G, H) if G.shape[0] else (G.new_zeros(1, G.shape[1]), H.new_zeros(1, H.shape[1]))


def _member(cls: type[Member], M: LinearMap, generators: Generators, **fields: Any) -> Member:
    G, H = (t.to(M.dtype) for t in _at_least_one(*generators))
    return cls(M.out_features, M.in_features, G=G, H=H, **fields)
