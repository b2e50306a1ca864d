"""A matrix of low rank in C: two products a rank."""

from __future__ import annotations

from typing import Any

from ...core.rules import rule
from . import LowRank

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
