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
every operator is served whose products the dtype can hold; zeros and underflow do no harm.

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

from . import nvrtc
from .cuda import unavailable

SEGMENT = 32

SOURCE = r"""
typedef long long i64;

// Numbers of a segment, arrays of shape (.., matrices, segments, n). What `sums` finds: the product of its
// weights, x at its end, and where GRADED sum D W and r, with W and B counted from the segment's first row.
enum { PRODUCT, END_X, SUM_DW, END_R };
// What `chain` makes of it, taken over from above and from below; l and t already times the weight between.
enum { X, W_, S_, V_, B_, R_, L_, T_ };

#define SLOT(diagonal) ((matrix * segments + segment) * n + (diagonal))
#define BEFORE(s) (SQUARE || STRAIGHT ? (s) : ((s) + n - m % n) % n)
#define AFTER(s) (SQUARE || STRAIGHT ? (s) : ((s) + m) % n)
#define WEIGHT(i, walk) ((i) ? a[i] * c[(walk).column] : (T)1)

// A thread has diagonal s and the rows from `begin` to `end` of one segment.
#define THREAD(threads) \
    int s = blockIdx.x * (threads) + threadIdx.x, segment = blockIdx.y; \
    if (s >= n) return; \
    i64 matrix = blockIdx.z, size = (i64)m * n, all = (i64)gridDim.z * segments * n; \
    a += matrix * m; c += matrix * n; e += matrix * size; \
    int begin = segment * SEGMENT, end = begin + SEGMENT < m ? begin + SEGMENT : m;

// A place on a diagonal. Where BACK, matrices are read and written from their other end.
struct Walk {
    int at, column, n;
    __device__ Walk(int diagonal, int row, int m, int n) : n(n) {
        column = STRAIGHT ? diagonal : (diagonal + row) % n;
        at = row * n + column;
        if (BACK) at = m * n - 1 - at;
    }
    __device__ void skip(int offset) { at += BACK ? -offset : offset; }
    __device__ void down() {
        skip(STRAIGHT ? n : n + 1);
        if (!STRAIGHT && ++column == n) { column = 0; skip(-n); }
    }
    __device__ void up() {
        skip(STRAIGHT ? -n : -n - 1);
        if (!STRAIGHT && --column < 0) { column = n - 1; skip(n); }
    }
};

extern "C" __global__ void sums(
    const T* __restrict__ a, const T* __restrict__ c, const T* __restrict__ e, const T* __restrict__ D,
    T* __restrict__ sum, int m, int n, int segments
) {
    THREAD(SUMS_THREADS)
    Walk own(s, begin, m, n), after(AFTER(s), begin, m, n);
    T p = 1, x = 0, dw = 0, r = 0, W = 1, B = 0;
    #pragma unroll 8
    for (int i = begin; i < end; i++) {
        T w = WEIGHT(i, own), source = e[own.at];
        x = w * x + source;
        p *= w;
        if (GRADED) {
            const T* d = D + matrix * size;
            r = w * r + source * (SQUARE ? dw : B);
            dw += d[own.at] * p;
            if (!SQUARE) {
                W *= WEIGHT(i, after);
                B += d[after.at] * W;
                after.down();
            }
        }
        own.down();
    }
    sum += SLOT(s);
    sum[PRODUCT * all] = p;
    sum[END_X * all] = x;
    if (GRADED) { sum[SUM_DW * all] = dw; sum[END_R * all] = r; }
}

extern "C" __global__ void chain(
    const T* __restrict__ sum, T* __restrict__ state, int m, int n, int segments
) {
    int s = blockIdx.x * CHAIN_THREADS + threadIdx.x;
    if (s >= n) return;
    i64 matrix = blockIdx.z, all = (i64)gridDim.z * segments * n;
    T x = 0, W = 1, B = 0, r = 0, W_after = 1, B_after = 0;
    #pragma unroll 8
    for (int segment = 0; segment < segments; segment++) {
        i64 own = SLOT(s), after = SLOT(AFTER(s));
        T p = sum[own + PRODUCT * all], y = sum[own + END_X * all];
        state[own + X * all] = x;
        state[own + W_ * all] = W;
        if (GRADED) {
            state[own + B_ * all] = B;
            state[own + R_ * all] = r;
            r = p * r + B_after * y + W_after * sum[own + END_R * all];
            B += W * sum[own + SUM_DW * all];
            B_after += W_after * sum[after + SUM_DW * all];
            W_after *= sum[after + PRODUCT * all];
        }
        x = p * x + y;
        W *= p;
    }
    T V = 1, S = 0, l = 0, t = 0, V_before = 1, S_before = 0;
    #pragma unroll 8
    for (int segment = segments - 1; segment >= 0; segment--) {
        i64 own = SLOT(s), before = SLOT(BEFORE(s));
        T p = sum[own + PRODUCT * all];
        state[own + S_ * all] = S;
        state[own + V_ * all] = V;
        if (GRADED) {
            state[own + L_ * all] = l;
            state[own + T_ * all] = t;
            T dw = sum[own + SUM_DW * all];
            l = dw + p * l;
            t = S_before * dw + V_before * sum[before + END_R * all] + p * t;
            S_before += sum[before + END_X * all] * V_before;
            V_before *= sum[before + PRODUCT * all];
        }
        S += sum[own + END_X * all] * V;
        V *= p;
    }
}

extern "C" __global__ void fill(
    const T* __restrict__ a, const T* __restrict__ c, const T* __restrict__ e, const T* __restrict__ state,
    T* __restrict__ M, int m, int n, int segments
) {
    __shared__ T through[SEGMENT][FILL_THREADS];
    THREAD(FILL_THREADS)
    M += matrix * size;
    i64 slot = SLOT(s), slot_before = SLOT(BEFORE(s));
    T corner = a[0] * c[s], S = state[slot_before + S_ * all], V = state[slot_before + V_ * all];
    Walk before(BEFORE(s), end - 1, m, n);
    #pragma unroll 8
    for (int i = end - 1; i >= begin; i--) {
        through[i - begin][threadIdx.x] = corner * S;
        S += e[before.at] * V;
        V *= WEIGHT(i, before);
        before.up();
    }
    T x = state[slot + X * all], W = state[slot + W_ * all];
    Walk own(s, begin, m, n);
    #pragma unroll 8
    for (int i = begin; i < end; i++) {
        T w = WEIGHT(i, own);
        x = w * x + e[own.at];
        W *= w;
        M[own.at] = x + W * through[i - begin][threadIdx.x];
        own.down();
    }
}

extern "C" __global__ void gradients(
    const T* __restrict__ a, const T* __restrict__ c, const T* __restrict__ e, const T* __restrict__ D,
    const T* __restrict__ state, T* __restrict__ dw, T* __restrict__ dE, int m, int n, int segments
) {
    __shared__ T ls[SEGMENT][GRADIENTS_THREADS], ts[SEGMENT][GRADIENTS_THREADS];
    __shared__ T Vs[SEGMENT][GRADIENTS_THREADS];
    THREAD(GRADIENTS_THREADS)
    D += matrix * size; dw += matrix * size; dE += matrix * size;
    i64 slot = SLOT(s), slot_before = SLOT(BEFORE(s)), slot_after = SLOT(AFTER(s));
    T corner = a[0] * c[s], corner_after = a[0] * c[AFTER(s)];
    T l = state[slot + L_ * all], t = state[slot + T_ * all], V = state[slot + V_ * all];
    T S = state[slot_before + S_ * all], V_before = state[slot_before + V_ * all];
    Walk own(s, end - 1, m, n), before(BEFORE(s), end - 1, m, n);
    int lane = threadIdx.x;
    #pragma unroll 8
    for (int i = end - 1; i >= begin; i--) {
        int h = i - begin;
        T w = WEIGHT(i, own), d = D[own.at];
        l += d;
        t += d * S;
        ls[h][lane] = l;
        ts[h][lane] = t;
        Vs[h][lane] = V * corner_after;
        S += e[SQUARE ? own.at : before.at] * (SQUARE ? V : V_before);
        l *= w;
        t *= w;
        V *= w;
        if (!SQUARE) {
            V_before *= WEIGHT(i, before);
            before.up();
        }
        own.up();
    }
    T x = state[slot + X * all], W = state[slot + W_ * all], r = state[slot + R_ * all];
    T W_after = state[slot_after + W_ * all], B = state[slot_after + B_ * all];
    Walk after(AFTER(s), begin, m, n);
    #pragma unroll 8
    for (int i = begin; i < end; i++) {
        own.down();
        int h = i - begin;
        T w = WEIGHT(i, own), source = e[own.at], passing = Vs[h][lane];
        dE[own.at] = ls[h][lane] + passing * B;
        dw[own.at] = i ? ls[h][lane] * x + W * corner * ts[h][lane] + passing * r : ts[h][lane];
        x = w * x + source;
        r = w * r + source * B;
        W *= w;
        if (!SQUARE) W_after *= WEIGHT(i, after);
        B += D[SQUARE ? own.at : after.at] * (SQUARE ? W : W_after);
        if (!SQUARE) after.down();
    }
}
"""


class Gradients(NamedTuple):
    """Of `stein_scan` in its arguments."""

    a: Tensor  # (R, m)
    c: Tensor  # (R, n)
    e: Tensor  # (R, m, n)


def serves(*tensors: Tensor) -> bool:
    """Whether the kernels take these tensors."""
    first = tensors[0]
    if not first.is_cuda or first.dtype not in (torch.float32, torch.float64) or unavailable():
        return False
    return all(t.dtype == first.dtype and t.device == first.device for t in tensors)


def stein_scan(a: Tensor, c: Tensor, e: Tensor, straight: bool = False) -> Tensor:
    """The matrices sum_{t < m} A^t E (C^t)^T of stacked layers.

    Args:
        a: corner and subdiagonal of A, shape (R, m).
        c: likewise of C, shape (R, n), n >= m; where `straight`, C is diagonal and c its diagonal.
        e: the matrices E, shape (R, m, n).
        straight: whether C is diagonal. A must then have no corner, and m may exceed n.

    Returns:
        Shape (R, m, n). No gradient: `stein_scan_gradients` are its own.

    The same, slowly: the sum over t.
    """
    return _scan(a, c, e, Form(straight=straight))


def stein_scan_adjoint(a: Tensor, c: Tensor, D: Tensor, straight: bool = False) -> Tensor:
    """sum_{t < m} (A^t)^T D C^t, the adjoint of `stein_scan` in e: the same, from the other end."""
    c = c if straight else c.roll(-1, 1)
    return _scan(a.roll(-1, 1).flip(1), c.flip(1), D, Form(back=True, straight=straight))


def stein_scan_gradients(a: Tensor, c: Tensor, e: Tensor, D: Tensor) -> Gradients:
    """Gradients of sum(D * stein_scan(a, c, e)), shapes as there."""
    if serves(a, c, e, D):
        a, c, e, D = (t.contiguous() for t in (a, c, e, D))
        dw, dE, form = torch.empty_like(e), torch.empty_like(e), Form(graded=True)
        _launch("gradients", form, e, [a, c, e, D, _states(a, c, e, D, form), dw, dE])
    else:
        dw, dE = _plain_gradients(a, c, e, D)
    with torch.autocast(e.device.type, enabled=False):
        da = (dw @ c.unsqueeze(-1)).squeeze(-1)
        dc = (a.unsqueeze(-2) @ dw).squeeze(-2)
    return Gradients(da, dc, dE)


class Form(NamedTuple):
    """What the recurrences are asked for; kernels are compiled for each."""

    back: bool = False  # matrices are read and written from their other end
    straight: bool = False  # along columns instead of diagonals
    graded: bool = False  # also what the gradients need


def _scan(a: Tensor, c: Tensor, e: Tensor, form: Form) -> Tensor:
    if serves(a, c, e):
        a, c, e = a.contiguous(), c.contiguous(), e.contiguous()
        M = torch.empty_like(e)
        _launch("fill", form, e, [a, c, e, _states(a, c, e, e, form), M])
        return M
    M = _plain_scan(a, c, e.flip(1, 2) if form.back else e, form.straight)
    return M.flip(1, 2) if form.back else M


# By kernels.

# Threads of a block in float32. In shared memory `fill` has a number a row and thread, `gradients` three.
_BLOCKS = {"sums": 128, "chain": 32, "fill": 128, "gradients": 64}
_LARGEST = (1 << 31) - 1  # entries of a matrix
_MOST = 65535  # matrices: the last axis of a grid


@cache
def source(dtype: torch.dtype, square: bool, form: Form) -> str:
    """The kernels for matrices of this dtype, square ones or others."""
    known: dict[str, object] = {"T": "float" if dtype == torch.float32 else "double", "SEGMENT": SEGMENT}
    known |= {"SQUARE": int(square)} | {name.upper(): int(flag) for name, flag in form._asdict().items()}
    known |= {f"{name.upper()}_THREADS": _threads(name, dtype) for name in _BLOCKS}
    return "".join(f"#define {key} {value}\n" for key, value in known.items()) + SOURCE


def _threads(name: str, dtype: torch.dtype) -> int:
    """Of a block of this kernel."""
    return _BLOCKS[name] if name == "chain" else _BLOCKS[name] * 4 // dtype.itemsize


def _launch(name: str, form: Form, e: Tensor, arguments: list[Any]) -> None:
    (R, m, n), count = e.shape, segments(e)
    if m * n > _LARGEST or R > _MOST:
        raise ValueError(f"scan: {R} matrices of {m} x {n} are too many or too large for the kernels.")
    if R:
        threads = _threads(name, e.dtype)
        grid = -(-n // threads), 1 if name == "chain" else count, R
        nvrtc.launch(source(e.dtype, m == n, form), name, e.device, grid, threads, [*arguments, m, n, count])


def segments(e: Tensor) -> int:
    """How many segments a diagonal of e has."""
    return -(-e.shape[-2] // SEGMENT)


def _states(a: Tensor, c: Tensor, e: Tensor, D: Tensor, form: Form) -> Tensor:
    """What each segment takes over from the others."""
    R, _, n = e.shape
    sums = e.new_empty(4 if form.graded else 2, R, segments(e), n)
    _launch("sums", form, e, [a, c, e, D, sums])
    states = e.new_empty(8 if form.graded else 4, R, segments(e), n)
    _launch("chain", form, e, [sums, states])
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
