"""Monarch matrices in C: block by block, a product with a row of H and one with a row of G a rank."""

from __future__ import annotations

from typing import Any

from ...core.rules import rule
from . import Monarch

_TEXT = r"""
/* u blocks of p rows by v blocks of q columns, the last ones smaller. */
static void monarch(const weight *G, const float *g_scale, const weight *H, const float *h_scale, int rank,
                    int m, int u, int p, int n, int v, int q, const float *x, float *y)
{
    zero(y, m);
    for (int r = 0; r < rank; r++, G += v * m, H += u * n)
        for (int j = 0; j < u; j++)
            for (int i = 0; i < v; i++) {
                int column = i * q, end = (j + 1) * p < m ? (j + 1) * p : m;
                int width = column + q < n ? q : n - column;
                float z = SCALE(g_scale, r) * SCALE(h_scale, r) * dot(H + j * n + column, x + column, width);
                for (int o = j * p; o < end; o++)
                    y[o] += z * (float)G[i * m + o];
            }
}
"""


@rule("c", Monarch)
def _(M: Monarch, c: Any) -> str:
    (m, n), r, ((u, p), (v, q)) = M.shape, M.G.shape[0], M.grid
    (G, g_scale), (H, h_scale) = c.weights("G"), c.weights("H")
    c.define("monarch", _TEXT, "zero", "dot")
    c.call(f"monarch({G}, {g_scale}, {H}, {h_scale}, {r}, {m}, {u}, {p}, {n}, {v}, {q}, x, y);")
    c.multiplications = r * (u * n + v * m)
    return "products of blocks"
