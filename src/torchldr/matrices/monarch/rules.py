"""Rules of Monarch matrices: closure, and their products in ONNX and in C."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import pad

from ...algebra.members import linear_in_generators, scales_columns, scales_rows, sides_exchanged
from ...core.rules import rule
from ...functional.exported.dense import FormulaProduct
from . import Monarch

# Closure: sums of terms, the transpose, and diagonals from either side.

linear_in_generators(Monarch)
rule("transpose", Monarch)(sides_exchanged)
scales_rows(Monarch, "G")
scales_columns(Monarch, "H")


# In an ONNX graph.


@rule("onnx", Monarch)
def product(mode: str, M: Monarch) -> nn.Module:
    first, second = M.stages()
    form = "two batched matrix products"
    return FormulaProduct(form, _two_stages, first=first, second=second, m=M.out_features)


def _two_stages(x: Tensor, first: Tensor, second: Tensor, m: int) -> Tensor:
    """By weights (v, q, r u) and (u, v r, p)."""
    (v, q, _), (u, inner, p) = first.shape, second.shape
    x = pad(x, (0, v * q - x.shape[-1])).reshape(-1, v, q)
    z = (x.permute(1, 0, 2) @ first).reshape(v, -1, inner // v, u)
    y = z.permute(3, 1, 0, 2).reshape(u, -1, inner) @ second
    return y.permute(1, 0, 2).reshape(-1, u * p)[:, :m]


# In C: block by block, a product with a row of H and one with a row of G a rank.

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
