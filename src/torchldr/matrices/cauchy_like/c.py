"""Cauchy-like matrices in C: entry by entry, from the nodes."""

from __future__ import annotations

from typing import Any

from ...core.rules import rule
from . import CauchyLike

# work: r n, the vectors h_k x
_TEXT = r"""
static void cauchy(const weight *G, const float *g_scale, const weight *H, const float *h_scale,
                   const float *s, const float *t, int rank, int m, int n, const float *x, float *y,
                   float *work)
{
    for (int r = 0; r < rank; r++)
        for (int j = 0; j < n; j++)
            work[r * n + j] = SCALE(g_scale, r) * SCALE(h_scale, r) * (float)H[r * n + j] * x[j];
    for (int i = 0; i < m; i++) {
        float sum = 0.0f;
        for (int j = 0; j < n; j++) {
            float z = 0.0f;
            for (int r = 0; r < rank; r++)
                z += (float)G[r * m + i] * work[r * n + j];
            sum += z / (s[i] - t[j]);
        }
        y[i] = sum;
    }
}
"""


@rule("c", CauchyLike)
def _(M: CauchyLike, c: Any) -> str:
    (m, n), r = M.shape, M.G.shape[0]
    (G, g_scale), (H, h_scale) = c.weights("G"), c.weights("H")
    s, t = c.floats("s"), c.floats("t")
    c.define("cauchy", _TEXT)
    c.call(f"cauchy({G}, {g_scale}, {H}, {h_scale}, {s}, {t}, {r}, {m}, {n}, x, y, work);")
    c.scratch, c.multiplications = r * n, (r + 1) * m * n
    return "entries from the nodes"
