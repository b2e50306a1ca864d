"""The dense matrix of a square LDR-SD layer, and its adjoint, by recurrences along cyclic diagonals.

    matrix        M = sum_{t < n} A^t E (C^t)^T  with A, C subdiagonal with corners and E = G^T H
    Stein         M - A M C^T = (1 - F) E,  because A^n = f_A I, C^n = f_C I and F = f_A f_C
    recurrence    x_ij = a_i c_j x_{i-1, j-1} + (1 - F) e_ij,  indices modulo n

where a = (corner_A, subdiagonal_A) and c likewise. Along a cyclic diagonal, i = 0, 1, .., n - 1, let y be
the same recurrence started from 0 with e instead of (1 - F) e, y' its last value, and W_i the product of
the weights a c up to i. Then x_i = (1 - F) y_i + W_i y': sums of products and nothing else, so every
operator is served, zeros and any range of their products included. The paths that cross A's corner give
the gradient of the corner in the same terms (`corner_gradients`).

With a diagonal C instead the recurrence runs down the columns, x_ij = a_i c_j x_{i-1, j} + (1 - F) e_ij:
that is a Vandermonde-like matrix, transposed. `straight` asks for it.

Work O(n^2) for any rank, which a GPU does at the speed of its memory: diagonals are cut into segments of
SEGMENT rows, whose sums are computed at once, then chained. On a CPU the same is done row by row; there
it is the oracle of the kernels. The tests hold both to the definition.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from .cuda import unavailable

SEGMENT = 64
_THREADS = 128

_SOURCE = r"""
typedef long long i64;

// A diagonal d runs over i = 0 .. n - 1 with j = (i - d) mod n. Segment s has the rows from s L; the one
// in which j passes 0, at row d, is cut there: its rows before d are slot s, those from d on slot S.
// Corners are left out of a slot: they lie before its first row, slot 0 (a_0) or slot S (c_0).
// Where `straight`, d is a column, j = d, and nothing is cut. Where `graded`, with D, what the corners'
// gradients need as well.
extern "C" __global__ void segments(
    const T* __restrict__ a, const T* __restrict__ c, const T* __restrict__ e, const T* __restrict__ D,
    T* __restrict__ P, T* __restrict__ Y, T* __restrict__ B, T* __restrict__ U,
    int n, int S, int back, int graded, int straight
) {
    int d = blockIdx.x * blockDim.x + threadIdx.x, s = blockIdx.y;
    if (d >= n) return;
    i64 R = blockIdx.z;
    a += R * n; c += R * n; e += R * n * n; D += R * n * n;
    i64 slots = R * (S + 1) * n + d, last = (i64)n * n - 1;
    int begin = s * L, end = min(begin + L, n), split = d / L == s && !straight ? d : -1;
    T p = 1, y = 0, b = 0, u = 0;
    int j = straight ? d : begin - d;
    if (j < 0) j += n;
    #pragma unroll 8
    for (int i = begin; i < end; i++) {
        if (i == split) {
            i64 at = slots + (i64)s * n;
            P[at] = p; Y[at] = y;
            if (graded) { B[at] = b; U[at] = u; }
            p = 1; y = 0; b = 0; u = 0;
        }
        T w = (i ? a[i] : 1) * (j || straight ? c[j] : 1);
        i64 k = (i64)i * n + j;
        y = w * y + e[back ? last - k : k];
        p *= w;
        if (graded) { T g = D[k]; b += g * p; u += g * y; }
        if (!straight && ++j == n) j = 0;
    }
    i64 at = slots + (i64)(split < 0 ? s : S) * n;
    P[at] = p; Y[at] = y;
    if (graded) { B[at] = b; U[at] = u; }
}

// Slots along a diagonal in the order of its rows: after the cut segment comes slot S.
#define EACH_SLOT(stop, body) \
    for (int t = 0; t < (stop); t++) { \
        { i64 at = slots + (i64)t * n; T corner = t ? 1 : a0; body } \
        if (t == cut) { i64 at = slots + (i64)S * n; T corner = c0; body } \
    }

extern "C" __global__ void fill(
    const T* __restrict__ a, const T* __restrict__ c, const T* __restrict__ e,
    const T* __restrict__ P, const T* __restrict__ Y, T* __restrict__ M,
    int n, int S, int back, int straight
) {
    int d = blockIdx.x * blockDim.x + threadIdx.x, s = blockIdx.y, cut = straight ? -1 : d / L;
    if (d >= n) return;
    i64 R = blockIdx.z;
    a += R * n; c += R * n; e += R * n * n; M += R * n * n;
    i64 slots = R * (S + 1) * n + d, last = (i64)n * n - 1;
    T a0 = a[0], c0 = c[0], y = 0, F = 1;
    EACH_SLOT(S, y = P[at] * corner * y + Y[at]; F *= P[at] * corner;)
    T rest = 1 - F, x = y;
    EACH_SLOT(s, x = P[at] * corner * x + rest * Y[at];)
    int begin = s * L, end = min(begin + L, n), j = straight ? d : begin - d;
    if (j < 0) j += n;
    #pragma unroll 8
    for (int i = begin; i < end; i++) {
        i64 k = (i64)i * n + j;
        k = back ? last - k : k;
        x = a[i] * c[j] * x + rest * e[k];
        M[k] = x;
        if (!straight && ++j == n) j = 0;
    }
}

// y' sum_i D_i W_i - W' sum_i D_i y_i along a diagonal that begins at a corner, W' and y' at its end.
extern "C" __global__ void corners(
    const T* a, const T* c, const T* P, const T* Y, const T* B, const T* U, T* dA, T* dC, int n, int S
) {
    int d = blockIdx.x * blockDim.x + threadIdx.x, cut = d / L;
    if (d >= n) return;
    i64 R = blockIdx.z, slots = R * (S + 1) * n + d;
    T a0 = 1, c0 = c[R * n];
    T w = 1, y = 0, b = 0, u = 0;
    #define CHAIN { w *= corner; y *= corner; \
        b += w * B[at]; u += U[at] + y * B[at]; y = P[at] * y + Y[at]; w *= P[at]; }
    EACH_SLOT(S, CHAIN)
    dA[R * n + d] = y * b - w * u;
    w = 1; y = 0; b = 0; u = 0;
    a0 = a[R * n]; c0 = 1;
    // From the cut on, then around to it. With d = 0 both corners lie before slot S.
    { i64 at = slots + (i64)S * n; T corner = d ? 1 : a0; CHAIN }
    for (int q = 1; q <= S; q++) {
        int t = (cut + q) % S;
        i64 at = slots + (i64)t * n;
        T corner = t || !d ? 1 : a0;
        CHAIN
    }
    dC[R * n + d] = y * b - w * u;
}
"""


@cache
def _kernel(name: str, dtype: torch.dtype) -> Any:
    type_name = "float" if dtype == torch.float32 else "double"
    return torch.cuda._compile_kernel(f"#define T {type_name}\n#define L {SEGMENT}\n{_SOURCE}", name)


def serves(t: Tensor) -> bool:
    """Whether the kernels take such tensors."""
    return t.is_cuda and t.dtype in (torch.float32, torch.float64) and unavailable() is None


def _launch(name: str, first: Tensor, segments: int, arguments: list[Any]) -> None:
    R, n = first.shape
    with torch.cuda.device(first.device):
        _kernel(name, first.dtype)((-(-n // _THREADS), segments, R), (_THREADS, 1, 1), arguments)


def stein_scan(a: Tensor, c: Tensor, e: Tensor, straight: bool = False) -> Tensor:
    """The matrices sum_{t < n} A^t E (C^t)^T of stacked square layers.

    Args:
        a: corner and subdiagonal of A, shape (R, n).
        c: likewise of C; where `straight`, C is diagonal and c its diagonal.
        e: the matrices E, shape (R, n, n).
        straight: whether C is diagonal. A must then have no corner.

    Returns:
        Shape (R, n, n). No gradient: `stein_scan_adjoint` is its own.

    The same, slowly: the sum over t.
    """
    return _scan(a, c, e, False, straight)


def stein_scan_adjoint(a: Tensor, c: Tensor, D: Tensor, straight: bool = False) -> Tensor:
    """sum_{t < n} (A^t)^T D C^t, the adjoint of `stein_scan` in e: the same, from the other end."""
    c = c if straight else c.roll(-1, 1)
    return _scan(a.roll(-1, 1).flip(1), c.flip(1), D, True, straight)


def _scan(a: Tensor, c: Tensor, e: Tensor, back: bool, straight: bool) -> Tensor:
    n = a.shape[-1]
    if serves(e):
        a, c, e = a.contiguous(), c.contiguous(), e.contiguous()
        S = -(-n // SEGMENT)
        P, Y = (e.new_empty(len(e), S + 1, n) for _ in range(2))
        M = torch.empty_like(e)
        flags = int(back), int(straight)
        _launch("segments", a, S, [a, c, e, e, P, Y, P, Y, n, S, flags[0], 0, flags[1]])
        _launch("fill", a, S, [a, c, e, P, Y, M, n, S, *flags])
        return M
    e = e.flip(1, 2) if back else e
    shift = int(not straight)
    y = torch.zeros_like(e[:, 0])
    for i in range(n):
        y = a[:, i, None] * c * y.roll(shift, -1) + e[:, i]
    rest = 1.0 if straight else (1 - a.prod(-1) * c.prod(-1)).unsqueeze(-1)
    rows = []
    for i in range(n):
        y = a[:, i, None] * c * y.roll(shift, -1) + rest * e[:, i]
        rows.append(y)
    M = torch.stack(rows, 1)
    return M.flip(1, 2) if back else M


def corner_gradients(a: Tensor, c: Tensor, e: Tensor, D: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of sum(D * stein_scan(a, c, e)) in the corners a_0 and c_0, shape (R,) each.

    Along a diagonal that begins at the corner, the paths that cross it make up W_i (y' - W'_i y_i), W'_i
    the weights from i to the end, so the gradient is y' sum D W - W' sum D y with the corner left out of
    the weights.
    """
    n = a.shape[-1]
    if serves(e):
        a, c, e, D = a.contiguous(), c.contiguous(), e.contiguous(), D.contiguous()
        S = -(-n // SEGMENT)
        P, Y, B, U = (e.new_empty(len(e), S + 1, n) for _ in range(4))
        dA, dC = torch.empty_like(a), torch.empty_like(a)
        _launch("segments", a, S, [a, c, e, D, P, Y, B, U, n, S, 0, 1, 0])
        _launch("corners", a, 1, [a, c, P, Y, B, U, dA, dC, n, S])
        return dA.sum(-1), dC.sum(-1)
    return _corner(a, c, e, D), _corner(c, a, e.mT, D.mT)


def _corner(a: Tensor, c: Tensor, e: Tensor, D: Tensor) -> Tensor:
    one = torch.ones_like(c)
    y, W = torch.zeros_like(c), one
    ends, crossing = torch.zeros_like(c), torch.zeros_like(c)
    for i in range(a.shape[-1]):
        w = c * (a[:, i, None] if i else one)
        y, W = w * y.roll(1, -1) + e[:, i], w * W.roll(1, -1)
        ends = ends.roll(1, -1) + D[:, i] * y
        crossing = crossing.roll(1, -1) + D[:, i] * W
    return (y * crossing - W * ends).sum(-1)
