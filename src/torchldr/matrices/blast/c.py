"""BLAST matrices in C: inner products of the blocks, coupled, a rank after the other."""

from __future__ import annotations

from typing import Any

from ...core.rules import rule
from . import Blast

# work: v
_TEXT = r"""
/* u blocks of p rows by v blocks of q columns, the last ones smaller. */
static void blast(const weight *G, const float *g_scale, const weight *S, const float *s_scale,
                  const weight *H, const float *h_scale, int rank, int m, int u, int p, int n, int v, int q,
                  const float *x, float *y, float *work)
{
    zero(y, m);
    for (int r = 0; r < rank; r++, G += m, S += u * v, H += n) {
        float scale = SCALE(g_scale, r) * SCALE(s_scale, r) * SCALE(h_scale, r);
        for (int i = 0; i < v; i++)
            work[i] = scale * dot(H + i * q, x + i * q, (i + 1) * q < n ? q : n - i * q);
        for (int j = 0; j < u; j++) {
            float z = dot(S + j * v, work, v);
            for (int o = j * p; o < (j + 1) * p && o < m; o++)
                y[o] += z * (float)G[o];
        }
    }
}
"""


@rule("c", Blast)
def _(M: Blast, c: Any) -> str:
    (m, n), r, ((u, p), (v, q)) = M.shape, M.G.shape[0], M.grid
    weights = ", ".join(name for tensor in "GSH" for name in c.weights(tensor))
    c.define("blast", _TEXT, "zero", "dot")
    c.call(f"blast({weights}, {r}, {m}, {u}, {p}, {n}, {v}, {q}, x, y, work);")
    c.scratch, c.multiplications = v, r * (m + n + u * v)
    return "coupled products"
