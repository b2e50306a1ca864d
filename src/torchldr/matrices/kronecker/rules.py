"""Rules of sums of Kronecker products: closure, solving, and their products in ONNX and in C."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ...algebra.members import linear_in_generators
from ...core.rules import rule
from ...functional.exported.dense import FormulaProduct
from ...linalg.solvers import Candidate, formula
from . import Kronecker, Sizes

# Closure: sums, transposes, and products factor by factor.

linear_in_generators(Kronecker)


@rule("transpose", Kronecker)
def _(M: Kronecker) -> Kronecker:
    options = {"out_blocks": M.options["in_blocks"], "in_blocks": M.options["out_blocks"]}
    tensors = {"G": M.A.mT.flatten(1), "H": M.B.mT.flatten(1)}
    return Kronecker.unchecked(M.in_features, M.out_features, tensors, options)


@rule("matmul", Kronecker, Kronecker)
def _(M: Kronecker, N: Kronecker) -> Kronecker | None:
    """(A (x) B)(C (x) D) = A C (x) B D, for every pair of terms, where no side between is cropped."""
    (_, _, c, d), rank = M.sizes, M.G.shape[0] * N.G.shape[0]
    fits = (c, d) == N.sizes[:2] and c * d == M.in_features and rank <= min(M.out_features, N.in_features)
    if not fits or M.dtype != N.dtype:
        return None
    A, B = M.A.unsqueeze(1) @ N.A, M.B.unsqueeze(1) @ N.B  # (r, s, .., ..)
    options = {"out_blocks": M.sizes.a, "in_blocks": N.sizes.c}
    tensors = {"G": A.flatten(0, 1).flatten(1), "H": B.flatten(0, 1).flatten(1)}
    return Kronecker.unchecked(M.out_features, N.in_features, tensors, options)


# Solving: with each factor.


@rule("solvers", Kronecker)
def _(M: Kronecker) -> list[Candidate] | None:
    a, b, c, d = M.sizes
    if M.G.shape[0] > 1 or (a, b) != (c, d) or a * b != M.in_features:
        return None  # sums and cropped products have no inverse of this form

    def solve(y: Tensor, A: Tensor, B: Tensor) -> Tensor:
        z = _solved(A, y.unflatten(-1, (a, b)))
        return _solved(B, z.mT).mT.flatten(-2)

    return [formula("factors", lambda y: solve(y, M.A[0], M.B[0]), lambda y: solve(y, M.A[0].mT, M.B[0].mT))]


def _solved(A: Tensor, y: Tensor) -> Tensor:
    """A^-1 Y for matrices Y (p, n, k), not finite where A is singular."""
    factors, pivots, _ = torch.linalg.lu_factor_ex(A)
    return torch.linalg.lu_solve(factors, pivots, y)


# In an ONNX graph.


@rule("onnx", Kronecker)
def product(mode: str, M: Kronecker) -> nn.Module:
    first, second = M.B.flatten(0, 1).mT, M.A.transpose(0, 1).flatten(1)
    parts = {"first": first, "second": second, "sizes": M.sizes, "m": M.out_features}
    return FormulaProduct("two matrix products", _two_factors, **parts)


def _two_factors(x: Tensor, first: Tensor, second: Tensor, sizes: Sizes, m: int) -> Tensor:
    """By B (d, r b) and A (a, r c)."""
    (a, b, c, d), r = sizes, first.shape[1] // sizes.b
    z = pad(x, (0, c * d - x.shape[-1])).reshape(-1, c, d) @ first
    z = z.reshape(-1, c, r, b).permute(0, 2, 1, 3).reshape(-1, r * c, b)
    return (second @ z).reshape(-1, a * b)[:, :m]


# In C: a block of columns at a time.

# work: b
_TEXT = r"""
/* A sum of Kronecker products of A (a x c) and B (b x d), cropped to m x n. */
static void kronecker(const weight *A, const float *a_scale, const weight *B, const float *b_scale, int rank,
                      int m, int a, int b, int n, int c, int d, const float *x, float *y, float *work)
{
    zero(y, m);
    for (int r = 0; r < rank; r++, A += a * c, B += b * d)
        for (int j = 0; j < c; j++) {
            int width = (j + 1) * d < n ? d : n - j * d;
            for (int k = 0; k < b; k++)
                work[k] = SCALE(a_scale, r) * SCALE(b_scale, r) * dot(B + k * d, x + j * d, width);
            for (int i = 0; i < a; i++)
                for (int k = 0; k < b && i * b + k < m; k++)
                    y[i * b + k] += (float)A[i * c + j] * work[k];
        }
}
"""


@rule("c", Kronecker)
def _(M: Kronecker, writer: Any) -> str:
    (m, n), r, (a, b, c, d) = M.shape, M.G.shape[0], M.sizes
    (A, a_scale), (B, b_scale) = writer.weights("G"), writer.weights("H")
    writer.define("kronecker", _TEXT, "zero", "dot")
    writer.call(f"kronecker({A}, {a_scale}, {B}, {b_scale}, {r}, {m}, {a}, {b}, {n}, {c}, {d}, x, y, work);")
    writer.scratch, writer.multiplications = b, r * b * c * (d + a)
    return "two small factors"


# work: n + r b c
_INTEGER = r"""
/* A sum of Kronecker products of A (a x c) and B (b x d), cropped to m x n. */
static void kronecker(const int8_t *A, const int8_t *B, int32_t rank, int32_t m, int32_t b, int32_t n,
                      int32_t c, int32_t d, int32_t sizes, int32_t zero, const rescaling *between,
                      const rescaling *after, const int8_t *x, OUT *y, int16_t *work)
{
    int16_t *z = work + n;
    centre(x, zero, n, work);
    for (int32_t r = 0; r < rank; r++)
        for (int32_t k = 0; k < b; k++)
            for (int32_t j = 0; j < c; j++) {
                int32_t left = n - j * d, width = left < 0 ? 0 : left < d ? left : d;
                int32_t sum = dot16(B + (r * b + k) * d, work + j * d, width);
                z[(r * b + k) * c + j] = (int16_t)rescale(between, r, sum);
            }
    for (int32_t o = 0; o < m; o++) {
        int32_t sum = 0;
        for (int32_t r = 0; r < rank; r++)
            sum += dot16(A + r * sizes + o / b * c, z + (r * b + o % b) * c, c);
        y[o] = (OUT)rescale(after, o, sum);
    }
}
"""


@rule("c_integer", Kronecker)
def _(M: Kronecker, writer: Any) -> str:
    (m, n), r, (a, b, c, d) = M.shape, M.G.shape[0], M.sizes
    (A, left, a_scale), (B, right, b_scale) = writer.vectors("G"), writer.vectors("H")
    first = torch.einsum("rkd,ij->rkijd", right.unflatten(-1, (b, d)), torch.eye(c).double())
    first = first.reshape(r * b * c, c * d)[:, :n]
    second = torch.einsum("rij,kl->ikrlj", left.unflatten(-1, (a, c)), torch.eye(b).double())
    second = second.reshape(a * b, r * b * c)[:m]
    z = writer.stage(first, b_scale, 1 / a_scale, sums=second.abs().sum(1), repeat=b * c)
    y = writer.finish(second, 1.0)
    kronecker = writer.function("kronecker", _INTEGER, "dot16", "centre", "rescaling")
    sizes = f"{r}, {m}, {b}, {n}, {c}, {d}, {a * c}"
    writer.call(f"{kronecker}({A}, {B}, {sizes}, {writer.zero}, {z}, {y}, x, y, work);")
    writer.scratch16, writer.multiplications = n + r * b * c, r * b * c * (d + a)
    return "two small factors"
