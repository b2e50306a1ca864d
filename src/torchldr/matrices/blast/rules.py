"""Rules of BLAST matrices: closure, solving, and their products in ONNX and in C."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ...algebra.members import like, scales_columns, scales_rows
from ...core.rules import rule
from ...functional.exported.dense import FormulaProduct
from ...linalg.solvers import Candidate, formula
from . import Blast

# Closure: sums, transposes, and diagonals from either side.

scales_rows(Blast, "G")
scales_columns(Blast, "H")


@rule("transpose", Blast)
def _(M: Blast) -> Blast:
    tensors = {"G": M.H, "S": M.S.mT, "H": M.G}
    return Blast.unchecked(M.in_features, M.out_features, tensors, M.options)


@rule("add", Blast, Blast)
def _(M: Blast, N: Blast) -> Blast | None:
    """Terms go under each other."""
    same = M.options == N.options and M.dtype == N.dtype and M.device == N.device
    if not same or M.G.shape[0] + N.G.shape[0] > min(M.shape):
        return None
    return like(M, **{name: torch.cat((M.tensors[name], N.tensors[name])) for name in Blast.scaled})


# Solving: singular, where the bases are too small.


@rule("solvers", Blast)
def _(M: Blast) -> list[Candidate] | None:
    (u, _), (v, _) = M.grid
    if M.G.shape[0] * min(u, v) >= M.in_features:
        return None
    nothing = lambda b: torch.full_like(b, torch.nan)  # of rank r min(u, v), whatever the tensors are
    return [formula("none: singular", nothing, nothing)]


# In an ONNX graph.


@rule("onnx", Blast)
def product(mode: str, M: Blast) -> nn.Module:
    G, H = M.bases()
    form = "three batched matrix products"
    return FormulaProduct(form, _three_stages, G=G, S=M.S, H=H.mT, m=M.out_features)


def _three_stages(x: Tensor, G: Tensor, S: Tensor, H: Tensor, m: int) -> Tensor:
    """By G (u, r, p), S (r, u, v) and H (v, q, r)."""
    (u, _, p), (v, q, _) = G.shape, H.shape
    x = pad(x, (0, v * q - x.shape[-1])).reshape(-1, v, q)
    z = (x.permute(1, 0, 2) @ H).permute(2, 0, 1)  # (r, v, b)
    y = (S @ z).permute(1, 2, 0) @ G  # (u, b, p)
    return y.permute(1, 0, 2).reshape(-1, u * p)[:, :m]


# In C: inner products of the blocks, coupled, a rank after the other.

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


# work: n + r v + r u
_INTEGER = r"""
/* u blocks of p rows by v blocks of q columns, the last ones smaller. */
static void blast(const int8_t *G, const int8_t *S, const int8_t *H, int32_t rank, int32_t m, int32_t u,
                  int32_t p, int32_t n, int32_t v, int32_t q, int32_t zero, const rescaling *first,
                  const rescaling *second, const rescaling *after, const int8_t *x, OUT *y, int16_t *work)
{
    int16_t *w = work + n, *z = w + rank * v;
    centre(x, zero, n, work);
    for (int32_t r = 0; r < rank; r++) {
        for (int32_t i = 0; i < v; i++) {
            int32_t width = (i + 1) * q < n ? q : n - i * q;
            int32_t sum = dot16(H + r * n + i * q, work + i * q, width);
            w[r * v + i] = (int16_t)rescale(first, r, sum);
        }
        for (int32_t j = 0; j < u; j++)
            z[r * u + j] = (int16_t)rescale(second, r, dot16(S + (r * u + j) * v, w + r * v, v));
    }
    for (int32_t o = 0; o < m; o++) {
        int32_t sum = 0;
        for (int32_t r = 0; r < rank; r++)
            sum += G[r * m + o] * z[r * u + o / p];
        y[o] = (OUT)rescale(after, o, sum);
    }
}
"""


@rule("c_integer", Blast)
def _(M: Blast, c: Any) -> str:
    (m, n), r, ((u, p), (v, q)) = M.shape, M.G.shape[0], M.grid
    (G, g, g_scale), (S, s, s_scale), (H, h, h_scale) = (c.vectors(name) for name in "GSH")
    first, third = h.new_zeros(r, v, n), g.new_zeros(m, r, u)
    first[:, torch.arange(n) // q, torch.arange(n)] = h
    third[torch.arange(m), :, torch.arange(m) // p] = g.mT
    second, third = torch.block_diag(*s), third.reshape(m, -1)  # S is (r, u, v)
    w = c.stage(first.reshape(-1, n), h_scale, 1 / s_scale, sums=second.abs().sum(1), repeat=v)
    z = c.stage(second, s_scale.new_ones(r), 1 / g_scale, sums=third.abs().sum(1), repeat=u)
    y = c.finish(third, 1.0)
    blast = c.function("blast", _INTEGER, "dot16", "centre", "rescaling")
    sizes = f"{r}, {m}, {u}, {p}, {n}, {v}, {q}"
    c.call(f"{blast}({G}, {S}, {H}, {sizes}, {c.zero}, {w}, {z}, {y}, x, y, work);")
    c.scratch16, c.multiplications = n + r * (u + v), r * (m + n + u * v)
    return "coupled products"
