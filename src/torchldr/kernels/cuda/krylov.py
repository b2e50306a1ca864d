"""All Krylov columns of ring operators, and their adjoint, on a GPU: parallel in time.

k steps one after the other leave a GPU idle. So time is cut into chunks of L steps:

    bands    the band of A^L, 2L + 1 entries a row: L steps of the stencil on each row, a warp a row
    chain    every L-th column from the one before by that band, a block a vector, the band in registers
    fill     the columns between, all chunks at once, a warp for 128 - 2L places

A warp of `fill` holds 128 neighbouring places, its own and L more on either side; a step spoils one at each
end. The adjoint, with x_t the columns, d_t their gradients and s_t = d_t + A^T s_{t+1}, goes the same way:

    local    each chunk's part of s at its first step, as if nothing came after
    chain    s at the first step of every chunk, by the band of (A^T)^L
    flow     s of all steps, chunk by chunk, and with x the gradients of the operator

Windows and bands run around the ring as if it were an endless line, which makes every size right, however
small. Sums run in another order than step by step; rounding is of the same size. The kernels are compiled
at run time by NVRTC, which comes with torch.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from . import nvrtc

PER = 4  # places of a thread of `chain`
LARGEST = 4096  # places: beyond, a band does not fit in a block's registers

SOURCE = r"""
typedef long long i64;
#define FULL 0xffffffffu
#define SPAN (2 * L + 1)
#define WIDE ((SPAN + 31) / 32)           // of a band's row, entries a lane
#define OWN (128 - 2 * L)                 // places that a warp answers for
#define PACK (16 / (int)sizeof(T))        // entries in 16 bytes
#define ROOM ((PER + 2 * L + PACK - 1) / PACK * PACK)

struct alignas(16) Pack { T v[PACK]; };

__device__ __forceinline__ int wrap(int p, int m) { p %= m; return p < 0 ? p + m : p; }

// (A x)_i = l x_{i-1} + d x_i + u x_{i+1}: l and u of A, or of its transpose.
__device__ __forceinline__ T below(const T* lower, const T* upper, int i, int m, int transposed) {
    return transposed ? upper[wrap(i - 1, m)] : lower[i];
}
__device__ __forceinline__ T above(const T* lower, const T* upper, int i, int m, int transposed) {
    return transposed ? lower[wrap(i + 1, m)] : upper[i];
}

// What stands left of a lane's first entry and right of its last one.
#define NEIGHBOURS(x, N) \
    T left = __shfl_up_sync(FULL, x[N - 1], 1), right = __shfl_down_sync(FULL, x[0], 1); \
    if (lane == 0) left = 0; \
    if (lane == 31) right = 0;

#define STEP(x, N) { \
    NEIGHBOURS(x, N) \
    _Pragma("unroll") \
    for (int e = 0; e < N; e++) { \
        T here = x[e], after = e == N - 1 ? right : x[e + 1]; \
        x[e] = l[e] * left + d[e] * here + u[e] * after; \
        left = here; \
    } \
}

// A row of A^L is the row e_i^T times A, L times: the stencil of the transpose.
extern "C" __global__ void bands(
    const T* lower, const T* diagonal, const T* upper, T* B, int m, int transposed
) {
    int row = (int)(blockIdx.x * blockDim.x + threadIdx.x) >> 5, lane = threadIdx.x & 31;
    if (row >= m) return;
    i64 op = blockIdx.y;
    lower += op * m; diagonal += op * m; upper += op * m;
    T x[WIDE], l[WIDE], d[WIDE], u[WIDE];
    #pragma unroll
    for (int e = 0; e < WIDE; e++) {
        int o = lane * WIDE + e - L, j = wrap(row + o, m);
        x[e] = o == 0;
        l[e] = below(lower, upper, j, m, !transposed);
        d[e] = diagonal[j];
        u[e] = above(lower, upper, j, m, !transposed);
    }
    for (int t = 0; t < L; t++) STEP(x, WIDE)
    #pragma unroll
    for (int e = 0; e < WIDE; e++) {
        int o = lane * WIDE + e;
        if (o < SPAN) B[(op * m + row) * SPAN + o] = x[e];
    }
}

// y_c = in_c + A^L y_{c-1}, in_c = 0 from `given` on; with `back` c counts from the end.
extern "C" __global__ void __launch_bounds__(THREADS) chain(
    const T* B, const T* in, T* out, int m, int r, int count, int given, int back,
    int in_vector, int in_step, int out_vector, int out_step
) {
    extern __shared__ __align__(16) T shared[];
    const int first = PER * threadIdx.x, size = (m + 2 * L + PER + 2 * PACK) / PACK * PACK;
    const i64 op = blockIdx.x / r;
    T b[PER][SPAN], ahead[PER];
    #pragma unroll
    for (int e = 0; e < PER; e++) {
        #pragma unroll
        for (int o = 0; o < SPAN; o++) b[e][o] = first + e < m ? B[(op * m + first + e) * SPAN + o] : 0;
    }
    in += (i64)blockIdx.x * in_vector;
    out += (i64)blockIdx.x * out_vector;
    #define AHEAD(c) \
        _Pragma("unroll") \
        for (int e = 0; e < PER; e++) \
            ahead[e] = first + e < m && (c) < given \
                ? in[(i64)(back ? count - 1 - (c) : (c)) * in_step + first + e] : 0;
    AHEAD(0)
    for (int c = 0; c < count; c++) {
        T y[PER];
        #pragma unroll
        for (int e = 0; e < PER; e++) y[e] = ahead[e];
        AHEAD(c + 1)
        if (c && first < m) {
            const T* state = shared + (c & 1) * size;
            T w[ROOM];
            #pragma unroll
            for (int q = 0; q < ROOM; q += PACK) {
                Pack pack = *reinterpret_cast<const Pack*>(state + first + q);
                #pragma unroll
                for (int e = 0; e < PACK; e++) w[q + e] = pack.v[e];
            }
            #pragma unroll
            for (int e = 0; e < PER; e++) {
                #pragma unroll
                for (int o = 0; o < SPAN; o++) y[e] += b[e][o] * w[e + o];
            }
        }
        T* to = out + (i64)(back ? count - 1 - c : c) * out_step;
        T* state = shared + (c + 1 & 1) * size;  // place i at L + i, and again around the ring
        #pragma unroll
        for (int e = 0; e < PER; e++) {
            int i = first + e;
            if (i >= m) continue;
            to[i] = y[e];
            state[L + i] = y[e];
            if (i >= m - L) state[i - (m - L)] = y[e];
            if (i < L) state[L + m + i] = y[e];
        }
        __syncthreads();
    }
}

// The places of a warp: 4 a lane, of one chunk of one vector; own: those that it answers for.
#define WINDOW \
    const int warp = (int)(blockIdx.x * blockDim.x + threadIdx.x) >> 5, lane = threadIdx.x & 31; \
    const int segments = (m + OWN - 1) / OWN, chunks = (k + L - 1) / L; \
    const int chunk = warp / segments, base = warp % segments * OWN - L + 4 * lane; \
    if (chunk >= chunks) return; \
    const i64 vector = blockIdx.y, op = vector / r;

__device__ __forceinline__ void load(const T* from, int base, int m, T* x) {
    #if PACKED
    #pragma unroll
    for (int q = 0; q < 4; q += PACK) {
        Pack pack = *reinterpret_cast<const Pack*>(from + wrap(base + q, m));
        #pragma unroll
        for (int e = 0; e < PACK; e++) x[q + e] = pack.v[e];
    }
    #else
    #pragma unroll
    for (int e = 0; e < 4; e++) x[e] = from[wrap(base + e, m)];
    #endif
}

__device__ __forceinline__ void store(T* to, int base, int lane, int m, const T* x) {
    #if PACKED
    #pragma unroll
    for (int q = 0; q < 4; q += PACK) {
        Pack pack;
        #pragma unroll
        for (int e = 0; e < PACK; e++) pack.v[e] = x[q + e];
        if (4 * lane + q >= L && 4 * lane + q < 128 - L && base + q < m)
            *reinterpret_cast<Pack*>(to + base + q) = pack;
    }
    #else
    #pragma unroll
    for (int e = 0; e < 4; e++)
        if (4 * lane + e >= L && 4 * lane + e < 128 - L && base + e < m) to[base + e] = x[e];
    #endif
}

#define OPERATOR(transposed) \
    T l[4], d[4], u[4]; \
    _Pragma("unroll") \
    for (int e = 0; e < 4; e++) { \
        int i = wrap(base + e, m); \
        l[e] = below(lower + op * m, upper + op * m, i, m, transposed); \
        d[e] = diagonal[op * m + i]; \
        u[e] = above(lower + op * m, upper + op * m, i, m, transposed); \
    }

extern "C" __global__ void __launch_bounds__(128) fill(
    const T* lower, const T* diagonal, const T* upper, T* K, int m, int k, int r
) {
    WINDOW
    OPERATOR(0)
    T x[4];
    T* column = K + (vector * k + (i64)chunk * L) * m;
    load(column, base, m, x);
    const int last = min(L, k - chunk * L);
    for (int t = 1; t < last; t++) {
        STEP(x, 4)
        store(column + (i64)t * m, base, lane, m, x);
    }
}

extern "C" __global__ void __launch_bounds__(128) local(
    const T* lower, const T* diagonal, const T* upper, const T* dK, T* Z, int m, int k, int r
) {
    WINDOW
    OPERATOR(1)
    T s[4] = {0, 0, 0, 0};
    const T* column = dK + (vector * k + (i64)chunk * L) * m;
    #pragma unroll
    for (int t = L - 1; t >= 0; t--) {
        if (chunk * L + t >= k) continue;
        T g[4];
        load(column + (i64)t * m, base, m, g);
        STEP(s, 4)
        #pragma unroll
        for (int e = 0; e < 4; e++) s[e] += g[e];
    }
    store(Z + (vector * chunks + chunk) * m, base, lane, m, s);
}

// The gradients of lower, diagonal and upper by chunk, one array after the other.
extern "C" __global__ void __launch_bounds__(128) flow(
    const T* lower, const T* diagonal, const T* upper, const T* K, const T* dK, const T* Z, T* parts,
    int m, int k, int r
) {
    WINDOW
    OPERATOR(1)
    T s[4] = {0, 0, 0, 0}, gl[4] = {0, 0, 0, 0}, gd[4] = {0, 0, 0, 0}, gu[4] = {0, 0, 0, 0};
    if (chunk + 1 < chunks) load(Z + (vector * chunks + chunk + 1) * m, base, m, s);
    const i64 start = (vector * k + (i64)chunk * L) * m;
    #pragma unroll
    for (int t = L - 1; t >= 0; t--) {
        if (chunk * L + t >= k) continue;
        T g[4], x[4] = {0, 0, 0, 0};
        load(dK + start + (i64)t * m, base, m, g);
        if (chunk || t) load(K + start + (i64)(t - 1) * m, base, m, x);
        STEP(s, 4)
        NEIGHBOURS(x, 4)
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            s[e] += g[e];
            gl[e] += s[e] * (e ? x[e - 1] : left);
            gd[e] += s[e] * x[e];
            gu[e] += s[e] * (e == 3 ? right : x[e + 1]);
        }
    }
    const i64 whole = (i64)gridDim.y * chunks * m;
    T* part = parts + (vector * chunks + chunk) * m;
    store(part, base, lane, m, gl);
    store(part + whole, base, lane, m, gd);
    store(part + 2 * whole, base, lane, m, gu);
}
"""


@cache
def chunk_length(dtype: torch.dtype, m: int) -> int:
    """L: the longest whose band, 2L + 1 entries for each of m places, fits in a block's registers."""
    longest = 16 if m <= 1024 else 8 if m <= 2048 else 4
    longest //= dtype.itemsize // 4
    return min(longest, 1 << (m.bit_length() - 1))  # not beyond the ring


def settings(dtype: torch.dtype, m: int) -> dict[str, object]:
    """The definitions that the source is compiled with."""
    L, together = chunk_length(dtype, m), 16 // dtype.itemsize
    return {
        "T": "float" if dtype == torch.float32 else "double",
        "L": L,
        "PACKED": int(m % together == 0 and L % together == 0),
        "PER": PER,
        "THREADS": _chain_threads(m),
    }


@cache
def _source(dtype: torch.dtype, m: int) -> str:
    return "".join(f"#define {key} {value}\n" for key, value in settings(dtype, m).items()) + SOURCE


def _chain_threads(m: int) -> int:
    return -(-m // (32 * PER)) * 32


def _chain_bytes(dtype: torch.dtype, m: int) -> int:
    together = 16 // dtype.itemsize
    size = (m + 2 * chunk_length(dtype, m) + PER + 2 * together) // together * together
    return 2 * size * dtype.itemsize


def _launch(name: str, like: Tensor, grid: tuple[int, int], arguments: list[Any]) -> None:
    """Run a kernel on (s, r, .., m)."""
    m, dtype = like.shape[-1], like.dtype
    threads, shared = (_chain_threads(m), _chain_bytes(dtype, m)) if name == "chain" else (128, 0)
    nvrtc.launch(_source(dtype, m), name, like.device, (*grid, 1), threads, arguments, shared)


def krylov_columns(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, k: int) -> Tensor:
    """The Krylov columns of stacked ring operators.

    Args:
        lower, diagonal, upper: shape (s, m), m up to LARGEST.
        V: start vectors, shape (s, r, m).
        k: how many columns.

    Returns:
        Shape (s, r, k, m): column j is a row of it.
    """
    s, r, m = V.shape
    ring = [t.contiguous() for t in (lower, diagonal, upper)]
    K, V = V.new_empty(s, r, k, m), V.contiguous()
    if K.numel() == 0:
        return K
    L = chunk_length(V.dtype, m)
    B, chunks = _bands(ring, V, transposed=False), -(-k // L)
    _launch("chain", V, (s * r, 1), [B, V, K, m, r, chunks, 1, 0, m, 0, k * m, L * m])
    if L > 1:
        _launch("fill", V, _windows(V, chunks), [*ring, K, m, k, r])
    return K


def krylov_adjoint(
    lower: Tensor, diagonal: Tensor, upper: Tensor, K: Tensor, dK: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `krylov_columns` in lower, diagonal, upper (s, m) and V (s, r, m)."""
    s, r, k, m = K.shape
    ring = [t.contiguous() for t in (lower, diagonal, upper)]
    K, dK = K.contiguous(), dK.contiguous()
    if K.numel() == 0:
        return *(torch.zeros_like(t) for t in ring), K.new_zeros(s, r, m)  # type: ignore[return-value]
    chunks = -(-k // chunk_length(K.dtype, m))
    Z, parts = K.new_empty(s, r, chunks, m), K.new_empty(3, s, r * chunks, m)
    windows = _windows(K, chunks)
    _launch("local", K, windows, [*ring, dK, Z, m, k, r])
    B, step = _bands(ring, K, transposed=True), (chunks * m, m)
    _launch("chain", K, (s * r, 1), [B, Z, Z, m, r, chunks, chunks, 1, *step, *step])
    _launch("flow", K, windows, [*ring, K, dK, Z, parts, m, k, r])
    dl, dd, du = parts.sum(2)
    return dl, dd, du, Z[:, :, 0]


def _bands(ring: list[Tensor], like: Tensor, *, transposed: bool) -> Tensor:
    s, m = ring[0].shape
    B = like.new_empty(s, m, 2 * chunk_length(like.dtype, m) + 1)
    _launch("bands", like, (-(-m // 4), s), [*ring, B, m, int(transposed)])
    return B


def _windows(like: Tensor, chunks: int) -> tuple[int, int]:
    """Blocks of four warps for all chunks, and vectors."""
    m = like.shape[-1]
    segments = -(-m // (128 - 2 * chunk_length(like.dtype, m)))
    return -(-chunks * segments // 4), like.shape[0] * like.shape[1]
