"""Rules of Monarch matrices: closure, and their products in ONNX and in C."""

from __future__ import annotations

from typing import Any

import torch
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


# work: n + r u v
_INTEGER = r"""
/* u blocks of p rows by v blocks of q columns, the last ones smaller; G is (rank, m, v). */
static void monarch(const int8_t *G, const int8_t *H, int32_t rank, int32_t m, int32_t u, int32_t p,
                    int32_t n, int32_t v, int32_t q, int32_t zero, const rescaling *between,
                    const rescaling *after, const int8_t *x, OUT *y, int16_t *work)
{
    int16_t *z = work + n;
    centre(x, zero, n, work);
    for (int32_t r = 0; r < rank; r++)
        for (int32_t j = 0; j < u; j++)
            for (int32_t i = 0; i < v; i++) {
                int32_t width = (i + 1) * q < n ? q : n - i * q;
                int32_t sum = dot16(H + (r * u + j) * n + i * q, work + i * q, width);
                z[(r * u + j) * v + i] = (int16_t)rescale(between, r, sum);
            }
    for (int32_t o = 0; o < m; o++) {
        int32_t sum = 0;
        for (int32_t r = 0; r < rank; r++)
            sum += dot16(G + (r * m + o) * v, z + (r * u + o / p) * v, v);
        y[o] = (OUT)rescale(after, o, sum);
    }
}
"""


@rule("c_integer", Monarch)
def _(M: Monarch, c: Any) -> str:
    (m, n), r, ((u, p), (v, q)) = M.shape, M.G.shape[0], M.grid
    (g, g_scale), (H, h, h_scale) = c.rounded(M.G), c.vectors("H")
    G = c.constant("G", g.unflatten(-1, (v, m)).mT)
    columns, rows = torch.arange(n) // q, torch.arange(m) // p
    first = h.new_zeros(r, u, v, n)  # row (r, j, i) takes the columns of block i
    first[:, :, columns, torch.arange(n)] = h.unflatten(-1, (u, n))
    second = g.new_zeros(m, r, u, v)
    second[torch.arange(m), :, rows] = g.unflatten(-1, (v, m)).permute(2, 0, 1)
    second = second.reshape(m, -1)
    z = c.stage(first.reshape(-1, n), h_scale, 1 / g_scale, sums=second.abs().sum(1), repeat=u * v)
    y = c.finish(second, 1.0)
    monarch = c.function("monarch", _INTEGER, "dot16", "centre", "rescaling")
    c.call(f"{monarch}({G}, {H}, {r}, {m}, {u}, {p}, {n}, {v}, {q}, {c.zero}, {z}, {y}, x, y, work);")
    c.scratch16, c.multiplications = n + r * u * v, r * (u * n + v * m)
    return "products of blocks"
