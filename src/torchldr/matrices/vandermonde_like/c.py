"""Vandermonde-like matrices in C: correlations with h, then polynomials at the nodes by Horner's rule."""

from __future__ import annotations

from typing import Any

from ...core.rules import rule
from . import VandermondeLike

# work: n, the coefficients of a polynomial
_TEXT = r"""
static void vandermonde(const weight *G, const float *g_scale, const weight *H, const float *h_scale,
                        const float *nodes, int rank, int m, int n, const float *x, float *y, float *work)
{
    zero(y, m);
    for (int r = 0; r < rank; r++, G += m, H += n) {
        for (int j = 0; j < n; j++)
            work[j] = SCALE(g_scale, r) * SCALE(h_scale, r) * dot(H, x + j, n - j);
        for (int i = 0; i < m; i++) {
            float value = 0.0f;
            for (int j = n - 1; j >= 0; j--)
                value = value * nodes[i] + work[j];
            y[i] += (float)G[i] * value;
        }
    }
}
"""


@rule("c", VandermondeLike)
def _(M: VandermondeLike, c: Any) -> str:
    (m, n), r = M.shape, M.G.shape[0]
    (G, g_scale), (H, h_scale) = c.weights("G"), c.weights("H")
    nodes = c.floats("nodes")
    c.define("vandermonde", _TEXT, "zero", "dot")
    c.call(f"vandermonde({G}, {g_scale}, {H}, {h_scale}, {nodes}, {r}, {m}, {n}, x, y, work);")
    c.scratch, c.multiplications = n, r * (m * n + n * n / 2)
    return "polynomials at the nodes"
