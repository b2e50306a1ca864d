"""Rules of low-rank matrices: closure, exact conversion, solving, their products in ONNX and in C."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...algebra.convert import convert
from ...algebra.known import KnownDisplacement, Operators
from ...algebra.members import linear_in_generators, member, scales_columns, scales_rows, sides_exchanged
from ...algebra.multiply import multiply, rmultiply
from ...algebra.structure import DisplacementStructure, Form, Generators
from ...core.linear_map import LinearMap
from ...core.matrix import StructuredMatrix
from ...core.rules import rule
from ...functional.exported.dense import FormulaProduct
from ...linalg.solvers import Candidate, dense, formula
from ...operators import Diagonal, Operator
from ..ldr_td import LDRTridiagonal
from ..ldr_td.rules import diagonal_parts, tridiagonal
from ..toeplitz_like import ToeplitzLike, corner_sign
from ..toeplitz_like.rules import down, of_displacement
from . import LowRank

# Closure: they stay of low rank in every product.

linear_in_generators(LowRank)
rule("transpose", LowRank)(sides_exchanged)
scales_rows(LowRank, "G")
scales_columns(LowRank, "H")


def _stays(M: LowRank, other: LinearMap, m: int, n: int) -> bool:
    """Whether an m x n product with another map has the rank and the dtype of M; operators take any dtype."""
    like = isinstance(other, Operator) or other.dtype == M.dtype
    return like and not other.dtype.is_complex and M.G.shape[0] <= min(m, n)


@rule("matmul", LowRank, LinearMap)
def _by_left(M: LowRank, N: LinearMap) -> LowRank | None:
    m, n = M.out_features, N.in_features
    H = rmultiply(N, M.H).to(M.dtype) if _stays(M, N, m, n) else None
    return None if H is None else LowRank.unchecked(m, n, {"G": M.G, "H": H}, M.options)


@rule("matmul", LinearMap, LowRank)
def _by_right(M: LinearMap, N: LowRank) -> LowRank | None:
    m, n = M.out_features, N.in_features
    G = multiply(M, N.G).to(N.dtype) if _stays(N, M, m, n) else None
    return None if G is None else LowRank.unchecked(m, n, {"G": G, "H": N.H}, N.options)


@rule("matmul", LowRank, LowRank)
def _(M: LowRank, N: LowRank) -> LowRank | None:
    """The smaller rank stays."""
    return _by_left(M, N) if M.G.shape[0] <= N.G.shape[0] else _by_right(M, N)


@rule("displacement_structure", LowRank)
def _(M: LowRank) -> DisplacementStructure:
    """By (0, 0), of rank r."""
    A, B = (Diagonal(torch.zeros(size, dtype=M.dtype, device=M.device)) for size in M.shape)
    return DisplacementStructure(A, B, "stein", M.G.shape[0], lambda: (M.G, M.H))


@rule("displaced", LowRank)
def _(
    M: LowRank, own: DisplacementStructure | None, A: Operator, B: Operator, form: Form
) -> DisplacementStructure:
    """By any operators: G^T H - (A G^T)(H B), or (A G^T) H - G^T (H B)."""
    if form == "stein" and _is_zero(A) and own is not None:
        return DisplacementStructure(A, B, form, own.rank, own.make)

    def make() -> Generators:
        G, H, AG, HB = M.G, M.H, A.matmul(M.G), B.rmatmul(M.H)
        if form == "stein":
            return torch.cat((G, -AG)), torch.cat((H, HB))
        return torch.cat((AG, -G)), torch.cat((H, HB))

    return DisplacementStructure(A, B, form, 2 * M.G.shape[0], make)


def _is_zero(A: Operator) -> bool:
    return not bool(A.entries().values.any())


@rule("member", LowRank)
def _(M: LinearMap, known: DisplacementStructure) -> LowRank | None:
    zero = _is_zero(known.A) or _is_zero(known.B)
    return member(LowRank, M, known.generators()) if known.form == "stein" and zero else None


@rule("known_displacement", LowRank)
def _(M: LowRank) -> KnownDisplacement:
    m, n = M.shape
    identity = Diagonal(torch.ones(m, dtype=M.dtype, device=M.device))
    nothing = Diagonal(torch.zeros(n, dtype=M.dtype, device=M.device))
    return KnownDisplacement(Operators(identity, nothing), M.G.shape[0])


# A low-rank matrix as a member of classes that contain it.


@rule("to_ldr_td", LowRank)
def _(M: LowRank, tol: float | None) -> LDRTridiagonal:
    m, n = M.shape
    return tridiagonal(M.G, M.H, diagonal_parts(M.G.new_zeros(m)), diagonal_parts(M.H.new_zeros(n)))


@rule("to_toeplitz_like", LowRank)
def _(M: LowRank, tol: float | None) -> StructuredMatrix:
    m, n = M.shape
    if 2 * M.G.shape[0] > min(m, n):
        return convert(M.to_dense(), ToeplitzLike, tol=tol)
    a = corner_sign(m, n)
    return of_displacement(torch.cat((M.G, -down(M.G, a))), torch.cat((M.H, down(M.H, -a))))


# Solving: singular, but for r = n.


@rule("solvers", LowRank)
def _(M: LowRank) -> list[Candidate]:
    if M.G.shape[0] < M.in_features:  # of rank r, so singular whatever G and H are
        nothing = lambda b: torch.full_like(b, torch.nan)
        return [formula("none: singular", nothing, nothing)]
    return [dense(M)]


# In an ONNX graph.


@rule("onnx", LowRank)
@rule("onnx_at_load", LowRank)
def product(mode: str, M: LowRank) -> nn.Module:
    return FormulaProduct("two matrix products", _two_products, G=M.G, H=M.H)


def _two_products(x: Tensor, G: Tensor, H: Tensor) -> Tensor:
    return (x @ H.mT) @ G


# In C: two products a rank.

_TEXT = r"""
static void low_rank(const weight *G, const float *g_scale, const weight *H, const float *h_scale, int rank,
                     int m, int n, const float *x, float *y)
{
    zero(y, m);
    for (int r = 0; r < rank; r++, G += m, H += n) {
        float z = SCALE(g_scale, r) * SCALE(h_scale, r) * dot(H, x, n);
        for (int i = 0; i < m; i++)
            y[i] += z * (float)G[i];
    }
}
"""


@rule("c", LowRank)
def _(M: LowRank, c: Any) -> str:
    (m, n), r = M.shape, M.G.shape[0]
    (G, g_scale), (H, h_scale) = c.weights("G"), c.weights("H")
    c.define("low_rank", _TEXT, "zero", "dot")
    c.call(f"low_rank({G}, {g_scale}, {H}, {h_scale}, {r}, {m}, {n}, x, y);")
    c.multiplications = r * (m + n)
    return "two products"


# Frozen.


@rule("frozen", LowRank)
def _(M: LowRank, bias: Tensor | None) -> nn.Module:
    """Two layers of torch."""
    m, n = M.shape
    first = nn.utils.skip_init(nn.Linear, n, M.G.shape[0], False, device=M.device, dtype=M.dtype)
    second = nn.utils.skip_init(nn.Linear, M.G.shape[0], m, bias is not None, device=M.device, dtype=M.dtype)
    first.weight.copy_(M.H)
    second.weight.copy_(M.G.mT)
    if bias is not None:
        second.bias.copy_(bias)
    return nn.Sequential(first, second).requires_grad_(False)
