"""The kernels of `scan`, which has their formulas: sums of segments, a chain of them, then every entry."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import nvrtc

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


class Form(NamedTuple):
    """What the recurrences are asked for; kernels are compiled for each."""

    back: bool = False  # matrices are read and written from their other end
    straight: bool = False  # along columns instead of diagonals
    graded: bool = False  # also what the gradients need


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


def launch(name: str, form: Form, e: Tensor, arguments: list[Any]) -> None:
    (R, m, n), count = e.shape, segments(e)
    if m * n > _LARGEST or R > _MOST:
        raise ValueError(f"scan: {R} matrices of {m} x {n} are too many or too large for the kernels.")
    if R:
        threads = _threads(name, e.dtype)
        grid = -(-n // threads), 1 if name == "chain" else count, R
        nvrtc.launch(source(e.dtype, m == n, form), name, e.device, grid, threads, [*arguments, m, n, count])


def parts(e: Tensor) -> list[slice]:
    """A stack in as many parts as it takes launches."""
    return [slice(first, first + _MOST) for first in range(0, len(e), _MOST)]


def segments(e: Tensor) -> int:
    """How many segments a diagonal of e has."""
    return -(-e.shape[-2] // SEGMENT)


def states(a: Tensor, c: Tensor, e: Tensor, D: Tensor, form: Form) -> Tensor:
    """What each segment takes over from the others."""
    R, _, n = e.shape
    sums = e.new_empty(4 if form.graded else 2, R, segments(e), n)
    launch("sums", form, e, [a, c, e, D, sums])
    states = e.new_empty(8 if form.graded else 4, R, segments(e), n)
    launch("chain", form, e, [sums, states])
    return states
