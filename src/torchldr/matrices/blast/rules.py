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
