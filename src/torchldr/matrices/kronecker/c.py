"""Sums of Kronecker products in C: a block of columns at a time."""

from __future__ import annotations

from typing import Any

from ...core.rules import rule
from . import Kronecker

# work: b
_TEXT = r"""
/* A is a x c and B is b x d, a term after the other; what lies behind m and n is cropped. */
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
