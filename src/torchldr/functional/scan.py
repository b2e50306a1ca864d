"""The dense matrices of LDR-SD layers, and all their gradients, by recurrences along diagonals.

    matrix        M = sum_{t < m} A^t E (C^t)^T,  A m x m, C n x n, m <= n, both subdiagonal with corners
    weights       w_i = a_i c_j of a step into entry (i, j), a = (corner_A, subdiagonal_A), c likewise

A diagonal s has the entries (i, s + i) for i = 0 .. m - 1, columns modulo n. A path starts at an entry of E
and takes t < m steps down its diagonal; from the last row it goes on, through A's corner, in row 0 of
diagonal s + m (for a square that is s again). It never gets further than the row above its start, so

    x_i = w_i x_{i-1} + e_i                        paths on the diagonal alone
    M_i = x_i + W_i k S_i                          and those from diagonal s - m, through the corner

with W_i = w_1 .. w_i, k = a_0 c_s the weight of the corner and S_i = sum_{p > i} e_p w_{p+1} .. w_{m-1},
taken on diagonal s - m. With D the gradient of M, V_i = w_{i+1} .. w_{m-1} and B_i = sum_{q < i} D_q W_q,

    l_i = w_{i+1} l_{i+1} + D_i                    dE_i = l_i + V_i k' B'_i
    t_i = w_{i+1} t_{i+1} + D_i S_i                r_i = w_i r_{i-1} + e_i B'_i
    dw_i = l_i x_{i-1} + W_{i-1} k t_i + V_i k' r_{i-1},    dw_0 = t_0

where ' is for diagonal s + m: what flows over a step, by the paths that stay on the diagonal, came through
the corner, and will go through it. All of it is sums of products: no division and no difference, so that
every operator is served, zeros and any range of their products included.

With a diagonal C instead, diagonals become columns: that is a Vandermonde-like matrix, transposed, with A
the shift. `straight` asks for it.

Work O(m n) for any rank, which a GPU does at the speed of its memory: diagonals are cut into segments of
`SEGMENT` rows, whose sums are computed at once, then chained. On a CPU the same is done row by row; there it
is the oracle of the kernels. The tests hold both to the definition.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .cuda import unavailable

SEGMENT = 32

SOURCE = r"""
typedef long long i64;

// A thread follows a diagonal through the rows `begin` to `end` of a segment: its own, s, and the one before
// or after it, which for a square (SQUARE is 1) is the same. `x` is an offset into matrices, x_j its
// column. Where `back`, matrices are read and written from their other end.
#define DIAGONAL(threads) \
    int s = blockIdx.x * (threads) + threadIdx.x, g = blockIdx.y; \
    if (s >= n) return; \
    i64 R = blockIdx.z, size = (i64)m * n, all = (i64)gridDim.z * S * n; \
    a += R * m; c += R * n; e += R * size; \
    int begin = g * SEGMENT, end = begin + SEGMENT < m ? begin + SEGMENT : m; \
    int around = back ? -n : n, down = straight ? around : around + (back ? -1 : 1);
#define BEFORE(s) (SQUARE ? (s) : ((s) + n - m % n) % n)
#define AFTER(s) (SQUARE ? (s) : ((s) + m) % n)
#define PLACE(x, s, i) \
    int x##_j = straight ? (s) : ((s) + (i)) % n, x = (i) * n + x##_j; \
    if (back) x = m * n - 1 - x;
#define STEP_DOWN(x) { x += down; if (!straight && ++x##_j == n) { x##_j = 0; x -= around; } }
#define STEP_UP(x) { x -= down; if (!straight && --x##_j < 0) { x##_j = n - 1; x += around; } }
#define WEIGHT(i, x) ((i) ? a[i] * c[x##_j] : (T)1)
// Place of a segment in arrays of shape (.., R, S, n).
#define SLOT(g, s) ((R * S + (g)) * n + (s))

// Sums of segments: 0 weights P, 1 x at the end; and where `graded`, with W and B from the segment's
// first row on: 2 sum of D W, 3 r at the end.
extern "C" __global__ void sums(
    const T* __restrict__ a, const T* __restrict__ c, const T* __restrict__ e, const T* __restrict__ D,
    T* __restrict__ out, int m, int n, int S, int back, int straight, int graded
) {
    DIAGONAL(THREADS)
    D += R * size;
    PLACE(own, s, begin)
    PLACE(other, AFTER(s), begin)
    T p = 1, x = 0, b = 0, r = 0, W = 1, B = 0;
    if (!graded) {
        #pragma unroll 8
        for (int i = begin; i < end; i++) {
            T w = WEIGHT(i, own);
            x = w * x + e[own];
            p *= w;
            STEP_DOWN(own)
        }
    } else {
        #pragma unroll 8
        for (int i = begin; i < end; i++) {
            T w = WEIGHT(i, own), source = e[own];
            x = w * x + source;
            r = w * r + source * (SQUARE ? b : B);
            p *= w;
            b += D[own] * p;
            if (!SQUARE) {
                W *= WEIGHT(i, other);
                B += D[other] * W;
                STEP_DOWN(other)
            }
            STEP_DOWN(own)
        }
    }
    out += SLOT(g, s);
    out[0] = p;
    out[all] = x;
    if (graded) { out[2 * all] = b; out[3 * all] = r; }
}

// What a segment takes over: 0 x and 1 W from above, 2 S and 3 V from below; and where `graded`
// 4 B and 5 r from above, 6 w l and 7 w t from below.
extern "C" __global__ void chain(
    const T* __restrict__ sum, T* __restrict__ out, int m, int n, int S, int graded
) {
    int s = blockIdx.x * CHAIN_THREADS + threadIdx.x;
    if (s >= n) return;
    i64 R = blockIdx.z, all = (i64)gridDim.z * S * n;
    int before = BEFORE(s), after = AFTER(s);
    T x = 0, W = 1, B = 0, r = 0, W_after = 1, B_after = 0;
    T V = 1, F = 0, l = 0, t = 0, V_before = 1, F_before = 0;
    #pragma unroll 8
    for (int g = 0; g < S; g++) {
        i64 at = SLOT(g, s);
        T p = sum[at], y = sum[at + all];
        out[at] = x; out[at + all] = W;
        if (graded) {
            i64 next = SLOT(g, after);
            out[at + 4 * all] = B; out[at + 5 * all] = r;
            r = p * r + B_after * y + W_after * sum[at + 3 * all];
            B += W * sum[at + 2 * all];
            B_after += W_after * sum[next + 2 * all];
            W_after *= sum[next];
        }
        x = p * x + y;
        W *= p;
    }
    #pragma unroll 8
    for (int g = S - 1; g >= 0; g--) {
        i64 at = SLOT(g, s);
        T p = sum[at];
        out[at + 2 * all] = F; out[at + 3 * all] = V;
        if (graded) {
            i64 former = SLOT(g, before);
            out[at + 6 * all] = l; out[at + 7 * all] = t;
            T b = sum[at + 2 * all];
            l = b + p * l;
            t = F_before * b + V_before * sum[former + 3 * all] + p * t;
            F_before += sum[former + all] * V_before;
            V_before *= sum[former];
        }
        F += sum[at + all] * V;
        V *= p;
    }
}

extern "C" __global__ void fill(
    const T* __restrict__ a, const T* __restrict__ c, const T* __restrict__ e, const T* __restrict__ state,
    T* __restrict__ M, int m, int n, int S, int back, int straight
) {
    __shared__ T suffix[SEGMENT][THREADS];
    DIAGONAL(THREADS)
    M += R * size;
    i64 slot = SLOT(g, s), former = SLOT(g, BEFORE(s));
    T corner = a[0] * c[s], F = state[former + 2 * all], V = state[former + 3 * all];
    PLACE(other, BEFORE(s), end - 1)
    #pragma unroll 8
    for (int i = end - 1; i >= begin; i--) {
        suffix[i - begin][threadIdx.x] = corner * F;
        F += e[other] * V;
        V *= WEIGHT(i, other);
        STEP_UP(other)
    }
    T x = state[slot], W = state[slot + all];
    PLACE(own, s, begin)
    #pragma unroll 8
    for (int i = begin; i < end; i++) {
        T w = WEIGHT(i, own);
        x = w * x + e[own];
        W *= w;
        M[own] = x + W * suffix[i - begin][threadIdx.x];
        STEP_DOWN(own)
    }
}

extern "C" __global__ void gradients(
    const T* __restrict__ a, const T* __restrict__ c, const T* __restrict__ e, const T* __restrict__ D,
    const T* __restrict__ state, T* __restrict__ dw, T* __restrict__ dE, int m, int n, int S
) {
    __shared__ T ls[SEGMENT][GRADIENT_THREADS], ts[SEGMENT][GRADIENT_THREADS], Vs[SEGMENT][GRADIENT_THREADS];
    const int back = 0, straight = 0, lane = threadIdx.x;
    DIAGONAL(GRADIENT_THREADS)
    D += R * size; dw += R * size; dE += R * size;
    i64 slot = SLOT(g, s), former = SLOT(g, BEFORE(s)), next = SLOT(g, AFTER(s));
    T corner = a[0] * c[s], corner_after = a[0] * c[AFTER(s)];
    T l = state[slot + 6 * all], t = state[slot + 7 * all], V = state[slot + 3 * all];
    T F = state[former + 2 * all], V_before = state[former + 3 * all];
    PLACE(own, s, end - 1)
    PLACE(before, BEFORE(s), end - 1)
    #pragma unroll 8
    for (int i = end - 1; i >= begin; i--) {
        int h = i - begin;
        T w = WEIGHT(i, own), d = D[own];
        l += d;
        t += d * F;
        ls[h][lane] = l; ts[h][lane] = t; Vs[h][lane] = V * corner_after;
        F += e[SQUARE ? own : before] * (SQUARE ? V : V_before);
        l *= w;
        t *= w;
        V *= w;
        if (!SQUARE) {
            V_before *= WEIGHT(i, before);
            STEP_UP(before)
        }
        STEP_UP(own)
    }
    T x = state[slot], W = state[slot + all], r = state[slot + 5 * all];
    T W_after = state[next + all], B = state[next + 4 * all];
    PLACE(after, AFTER(s), begin)
    #pragma unroll 8
    for (int i = begin; i < end; i++) {
        STEP_DOWN(own)
        int h = i - begin;
        T w = WEIGHT(i, own), source = e[own], passing = Vs[h][lane];
        dE[own] = ls[h][lane] + passing * B;
        dw[own] = i ? ls[h][lane] * x + W * corner * ts[h][lane] + passing * r : ts[h][lane];
        x = w * x + source;
        r = w * r + source * B;
        W *= w;
        if (!SQUARE) W_after *= WEIGHT(i, after);
        B += D[SQUARE ? own : after] * (SQUARE ? W : W_after);
        if (!SQUARE) STEP_DOWN(after)
    }
}
"""


class Gradients(NamedTuple):
    """Of `stein_scan` in its arguments."""

    a: Tensor  # (R, m)
    c: Tensor  # (R, n)
    e: Tensor  # (R, m, n)


def serves(t: Tensor) -> bool:
    """Whether the kernels take such tensors."""
    return t.is_cuda and t.dtype in (torch.float32, torch.float64) and unavailable() is None


def stein_scan(a: Tensor, c: Tensor, e: Tensor, straight: bool = False) -> Tensor:
    """The matrices sum_{t < m} A^t E (C^t)^T of stacked layers.

    Args:
        a: corner and subdiagonal of A, shape (R, m).
        c: likewise of C, shape (R, n), n >= m; where `straight`, C is diagonal and c its diagonal.
        e: the matrices E, shape (R, m, n).
        straight: whether C is diagonal. A must then have no corner.

    Returns:
        Shape (R, m, n). No gradient: `stein_scan_gradients` are its own.

    The same, slowly: the sum over t.
    """
    return _scan(a, c, e, False, straight)


def stein_scan_adjoint(a: Tensor, c: Tensor, D: Tensor, straight: bool = False) -> Tensor:
    """sum_{t < m} (A^t)^T D C^t, the adjoint of `stein_scan` in e: the same, from the other end."""
    c = c if straight else c.roll(-1, 1)
    return _scan(a.roll(-1, 1).flip(1), c.flip(1), D, True, straight)


def stein_scan_gradients(a: Tensor, c: Tensor, e: Tensor, D: Tensor) -> Gradients:
    """Gradients of sum(D * stein_scan(a, c, e)), shapes as there."""
    if serves(e):
        a, c, e, D = (t.contiguous() for t in (a, c, e, D))
        dw, dE = torch.empty_like(e), torch.empty_like(e)
        _launch("gradients", e, [a, c, e, D, _states(a, c, e, D, False, False), dw, dE])
    else:
        dw, dE = _plain_gradients(a, c, e, D)
    da = (dw @ c.unsqueeze(-1)).squeeze(-1)
    dc = (a.unsqueeze(-2) @ dw).squeeze(-2)
    return Gradients(da, dc, dE)


def _scan(a: Tensor, c: Tensor, e: Tensor, back: bool, straight: bool) -> Tensor:
    if serves(e):
        a, c, e = a.contiguous(), c.contiguous(), e.contiguous()
        M = torch.empty_like(e)
        _launch("fill", e, [a, c, e, _states(a, c, e, None, back, straight), M], int(back), int(straight))
        return M
    M = _plain_scan(a, c, e.flip(1, 2) if back else e, straight)
    return M.flip(1, 2) if back else M


# By kernels.


@cache
def _kernel(name: str, dtype: torch.dtype, square: bool) -> Any:
    return torch.cuda._compile_kernel(source(dtype, square), name)


def source(dtype: torch.dtype, square: bool) -> str:
    """The kernels for matrices of this dtype, square ones or others."""
    known = {"T": "float" if dtype == torch.float32 else "double", "SQUARE": int(square), "SEGMENT": SEGMENT}
    return "\n".join(
        [f"#define {name} {value}" for name, value in (known | _threads(dtype)).items()] + [SOURCE]
    )


def _threads(dtype: torch.dtype) -> dict[str, int]:
    """Threads of a block: numbers of every row of a segment lie in shared memory, one or three a thread."""
    share = 1 if dtype == torch.float32 else 2
    return {"THREADS": 128 // share, "GRADIENT_THREADS": 64 // share, "CHAIN_THREADS": 32}


def _launch(name: str, e: Tensor, arguments: list[Any], *flags: int) -> None:
    (R, m, n), S = e.shape, segments(e)
    if not R:
        return
    if m * n >= 1 << 31:
        raise ValueError(f"scan: a matrix of {m} x {n} is too large for the kernels.")
    threads = _threads(e.dtype)[
        {"chain": "CHAIN_THREADS", "gradients": "GRADIENT_THREADS"}.get(name, "THREADS")
    ]
    grid = -(-n // threads), 1 if name == "chain" else S, R
    with torch.cuda.device(e.device):
        _kernel(name, e.dtype, m == n)(grid, (threads, 1, 1), [*arguments, m, n, S, *flags])


def segments(e: Tensor) -> int:
    """How many segments a diagonal of e has."""
    return -(-e.shape[-2] // SEGMENT)


def _states(a: Tensor, c: Tensor, e: Tensor, D: Tensor | None, back: bool, straight: bool) -> Tensor:
    """What each segment takes over from the others."""
    R, _, n = e.shape
    graded = D is not None
    sums = e.new_empty(4 if graded else 2, R, segments(e), n)
    _launch("sums", e, [a, c, e, e if D is None else D, sums], int(back), int(straight), int(graded))
    states = e.new_empty(8 if graded else 4, R, segments(e), n)
    _launch("chain", e, [sums, states], int(graded))
    return states


# Row by row.


def _plain_scan(a: Tensor, c: Tensor, e: Tensor, straight: bool) -> Tensor:
    d = _Diagonals(a, c, e, straight)
    e = d.take(e)
    x = _recurrence(d.w, e)
    S = _after(e * d.V)
    return d.put(x + d.W * d.corner * d.from_before(S))


def _plain_gradients(a: Tensor, c: Tensor, e: Tensor, D: Tensor) -> tuple[Tensor, Tensor]:
    """Those of the weights w and of e."""
    d = _Diagonals(a, c, e, False)
    e, D = d.take(e), d.take(D)
    S, B = d.from_before(_after(e * d.V)), d.from_next(_before(D * d.W))
    x, r = _recurrence(d.w, e), _recurrence(d.w, e * B)
    down = d.w.roll(-1, 1).flip(1)
    lam, t = (_recurrence(down, source.flip(1)).flip(1) for source in (D, D * S))
    through = d.V * d.from_next(d.corner)
    dw = lam[:, 1:] * x[:, :-1] + d.W[:, :-1] * d.corner * t[:, 1:] + through[:, 1:] * r[:, :-1]
    return d.put(torch.cat((t[:, :1], dw), 1)), d.put(lam + through * B)


class _Diagonals:
    """By row and diagonal, (R, m, n): the weights w and their products W and V; corner (R, 1, n)."""

    def __init__(self, a: Tensor, c: Tensor, e: Tensor, straight: bool) -> None:
        m, n = e.shape[-2:]
        rows = torch.arange(m, device=e.device).unsqueeze(-1) * (not straight)
        columns = torch.arange(n, device=e.device)
        self._taken, self._put = (columns + rows) % n, (columns - rows) % n
        self._step = 0 if straight else m
        w = a.unsqueeze(-1) * c[:, self._taken]
        self.corner = w[:, :1]
        self.w = torch.cat((torch.ones_like(self.corner), w[:, 1:]), 1)
        self.W = self.w.cumprod(1)
        self.V = torch.cat((self.w[:, 1:], torch.ones_like(self.corner)), 1).flip(1).cumprod(1).flip(1)

    def take(self, e: Tensor) -> Tensor:
        return e.gather(-1, self._taken.expand_as(e))

    def put(self, x: Tensor) -> Tensor:
        return x.gather(-1, self._put.expand_as(x))

    def from_before(self, x: Tensor) -> Tensor:
        return x.roll(self._step, -1)

    def from_next(self, x: Tensor) -> Tensor:
        return x.roll(-self._step, -1)


def _recurrence(w: Tensor, sources: Tensor) -> Tensor:
    """x_i = w_i x_{i-1} + source_i from 0, down the rows."""
    x, rows = torch.zeros_like(sources[:, 0]), []
    for weight, source_row in zip(w.unbind(1), sources.unbind(1), strict=True):
        x = torch.addcmul(source_row, weight, x)
        rows.append(x)
    return torch.stack(rows, 1)


def _before(t: Tensor) -> Tensor:
    """Sums of the rows above each."""
    return torch.nn.functional.pad(t[:, :-1].cumsum(1), (0, 0, 1, 0))


def _after(t: Tensor) -> Tensor:
    """Sums of the rows below each."""
    return _before(t.flip(1)).flip(1)
