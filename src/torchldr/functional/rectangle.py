"""The dense matrix of a wide LDR-SD layer, and its adjoint, by recurrences along diagonals.

    matrix        M = sum_{t < m} A^t E (C^t)^T,  A m x m, C n x n, m <= n, E = G^T H
    recurrence    M = M' + a_0 M'',   x_ij = a_i c_j x_{i-1, j-1} + source_ij

where a = (corner_A, subdiagonal_A), c likewise, and columns are counted modulo n. M' are the terms that do
not cross A's corner: the recurrence from 0 with the source E. M'' are those that do, with the corner left
out: it goes on from the last row of M', and what would be a term too many is taken away as soon as it
has gone around,

    source''_ij = -(a_1 .. a_{m-1}) (c_{j-m+1} .. c_j) e_{i, j-m}.

No division, so every operator is served. `scan` does the same for square matrices. On a GPU one thread
follows a diagonal; on a CPU it is done row by row, which is the oracle of the kernel.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .scan import serves

_THREADS = 64

# Where `back`, both matrices are read and written from their other end. `before` and `q` are given for M''.
SOURCE = r"""
typedef long long i64;
#define TILE 16                               // rows that are on their way from memory at once
#define PLACE(j, t) ((j) + (t) - ((j) + (t) < n ? 0 : n))
extern "C" __global__ void rectangle(
    const T* __restrict__ a, const T* __restrict__ c, const T* __restrict__ e,
    const T* __restrict__ q, const T* __restrict__ before, T* __restrict__ X,
    int m, int n, int crossed, int back
) {
    int s = blockIdx.x * blockDim.x + threadIdx.x;
    if (s >= n) return;
    i64 R = blockIdx.y, size = (i64)m * n, last = size - 1;
    a += R * m; c += R * n; q += R * n; e += R * size; before += R * size; X += R * size;
    T x = 0, source[TILE], weight[TILE];
    // A place wraps at most once in a tile, as m <= n; `around` is m columns behind j.
    int j = s, around = (s - m % n + n) % n;
    if (crossed) {
        i64 k = (i64)(m - 1) * n + (s ? s - 1 : n - 1);
        x = before[back ? last - k : k];
    }
    for (int first = 0; first < m; first += TILE) {
        #pragma unroll
        for (int t = 0; t < TILE; t++) {
            int i = first + t, column = PLACE(j, t);
            if (i >= m) continue;
            i64 from = (i64)i * n + (crossed ? PLACE(around, t) : column);
            source[t] = e[back ? last - from : from] * (crossed ? q[column] : 1);
            weight[t] = (i ? a[i] : 1) * c[column];
        }
        #pragma unroll
        for (int t = 0; t < TILE; t++) {
            if (first + t >= m) continue;
            x = weight[t] * x + source[t];
            i64 k = (i64)(first + t) * n + PLACE(j, t);
            X[back ? last - k : k] = x;
        }
        j = PLACE(j, TILE);
        around = PLACE(around, TILE);
    }
}
"""


class Parts(NamedTuple):
    """M = straight + a_0 crossing, each (R, m, n)."""

    straight: Tensor
    crossing: Tensor


@cache
def _kernel(dtype: torch.dtype) -> Any:
    type_name = "float" if dtype == torch.float32 else "double"
    return torch.cuda._compile_kernel(f"#define T {type_name}\n{SOURCE}", "rectangle")


def rectangle_parts(a: Tensor, c: Tensor, e: Tensor, *, back: bool = False) -> Parts:
    """The two parts of sum_{t < m} A^t E (C^t)^T for stacked layers.

    Args:
        a: corner and subdiagonal of A, shape (R, m).
        c: likewise of C, shape (R, n), n >= m.
        e: the matrices E, shape (R, m, n).
        back: read and write the matrices from their other end, see `rectangle_adjoint`.

    Returns:
        The matrix is `straight + a[:, :1, None] * crossing`. No gradient.
    """
    m = a.shape[-1]
    q = -a[:, 1:].prod(-1, keepdim=True) * window_products(c, m)
    if serves(e):
        a, c, e = a.contiguous(), c.contiguous(), e.contiguous()
        straight, crossing = torch.empty_like(e), torch.empty_like(e)
        R, m, n = e.shape
        grid, block = (-(-n // _THREADS), R, 1), (_THREADS, 1, 1)
        with torch.cuda.device(e.device):
            kernel = _kernel(e.dtype)
            kernel(grid, block, [a, c, e, q, e, straight, m, n, 0, int(back)])
            kernel(grid, block, [a, c, e, q, straight, crossing, m, n, 1, int(back)])
        return Parts(straight, crossing)
    e = e.flip(1, 2) if back else e
    around = (q.unsqueeze(1) * e.roll(m, -1)).unbind(1)
    straight_rows, crossing_rows = [], []
    x = torch.zeros_like(e[:, 0])
    for i, source in enumerate(e.unbind(1)):
        x = a[:, i, None] * c * x.roll(1, -1) + source
        straight_rows.append(x)
    for i, source in enumerate(around):
        x = (a[:, i, None] if i else 1) * c * x.roll(1, -1) + source
        crossing_rows.append(x)
    parts = torch.stack(straight_rows, 1), torch.stack(crossing_rows, 1)
    return Parts(*(part.flip(1, 2) if back else part for part in parts))


def rectangle(a: Tensor, c: Tensor, e: Tensor) -> Tensor:
    """sum_{t < m} A^t E (C^t)^T, shapes as for `rectangle_parts`. The same, slowly: the sum over t."""
    return _joined(a, rectangle_parts(a, c, e))


def rectangle_adjoint(a: Tensor, c: Tensor, D: Tensor) -> Tensor:
    """sum_{t < m} (A^t)^T D C^t, the adjoint of `rectangle` in e: the same, from the other end."""
    a, c = (t.roll(-1, 1).flip(1) for t in (a, c))
    return _joined(a, rectangle_parts(a, c, D, back=True))


def window_products(c: Tensor, m: int) -> Tensor:
    """c_j c_{j-1} .. c_{j-m+1}, indices modulo n, by doubling: shape (..., n) as c."""
    product, k = c, 1
    for bit in f"{m:b}"[1:]:
        product, k = product * product.roll(k, -1), 2 * k
        if bit == "1":
            product, k = c * product.roll(1, -1), k + 1
    return product


def _joined(a: Tensor, parts: Parts) -> Tensor:
    return torch.addcmul(parts.straight, a[:, :1, None], parts.crossing)
