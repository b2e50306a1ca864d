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

Many chunks are chained in groups of LEAP steps, all groups at once, after `leap` has gone from group to group
by the band of A^LEAP, a warp a place. Where a band does not fit in registers `leap` goes from chunk to chunk.

Windows and bands run around the ring as if it were an endless line, which makes every size right, however
small. Sums run in another order than step by step; rounding is of the same size. The kernels are compiled
at run time by NVRTC, which comes with torch.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import nvrtc

PER = 4  # places of a thread of `chain`
IN_REGISTERS = 4096  # places: beyond, a band does not fit in those of a block
MOST, BYTES = 1 << 30, 64  # entries of Krylov matrices that are held at most, and memory for one
VECTORS = 65535  # of a launch: the second axis of a grid
LEAP = 128  # steps of a group
GROUPED = 128  # chunks: more are chained in groups

_BANDS = r"""
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

// The rows of rings (s, 3 + r, m): upper, lower, diagonal and r start vectors.
#define RING(op) \
    const T* upper = rings + (op) * (3 + r) * m; \
    const T *lower = upper + m, *diagonal = lower + m;

// A row of A^L is the row e_i^T times A, L times: the stencil of the transpose.
extern "C" __global__ void bands(const T* rings, T* B, int m, int r, int transposed) {
    int row = (int)(blockIdx.x * blockDim.x + threadIdx.x) >> 5, lane = threadIdx.x & 31;
    if (row >= m) return;
    i64 op = blockIdx.y;
    RING(op)
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

"""

_LEAPS = r"""
// to += A^L from, a vector of each operator.
extern "C" __global__ void leap(const T* B, const T* from, T* to, int m, int r, int vector, int add) {
    int row = (int)(blockIdx.x * blockDim.x + threadIdx.x) >> 5, lane = threadIdx.x & 31;
    if (row >= m) return;
    from += (i64)blockIdx.y * vector;
    to += (i64)blockIdx.y * vector;
    B += ((i64)(blockIdx.y / r) * m + row) * SPAN;
    T sum = 0;
    #pragma unroll
    for (int e = 0; e < WIDE; e++) {
        int o = lane + 32 * e;
        if (o < SPAN) sum += B[o] * from[wrap(row + o - L, m)];
    }
    for (int far = 16; far; far /= 2) sum += __shfl_down_sync(FULL, sum, far);
    if (lane == 0) to[row] = add ? to[row] + sum : sum;
}
"""

_CHAIN = r"""
// y_c = in_c + A^L y_{c-1} in groups of `size`; with `back` c counts from the end. Not `given`, in_c is 0 but
// for a group's first. Before that one stands what the group before it has left in `start`, or 0.
extern "C" __global__ void __launch_bounds__(THREADS) chain(
    const T* B, const T* in, const T* start, T* out, int m, int r, int count, int size, int given, int back,
    int in_vector, int in_step, int out_vector, int out_step, int out_group
) {
    extern __shared__ __align__(16) T shared[];
    const int first = PER * threadIdx.x, room = (m + 2 * L + PER + 2 * PACK) / PACK * PACK;
    const int group = blockIdx.y, before = group * size, last = min(size, count - before);
    const i64 op = blockIdx.x / r;
    T b[PER][SPAN], ahead[PER];
    #pragma unroll
    for (int e = 0; e < PER; e++) {
        #pragma unroll
        for (int o = 0; o < SPAN; o++) b[e][o] = first + e < m ? B[(op * m + first + e) * SPAN + o] : 0;
    }
    in += (i64)blockIdx.x * in_vector;
    out += (i64)blockIdx.x * out_vector + (i64)group * out_group;
    #define PLACE(c) (i64)(back ? count - 1 - before - (c) : before + (c))
    #define AHEAD(c) \
        _Pragma("unroll") \
        for (int e = 0; e < PER; e++) \
            ahead[e] = first + e < m && (c) < last && ((c) == 0 || given) \
                ? in[PLACE(c) * in_step + first + e] : 0;
    // Place i at L + i, and again around the ring.
    #define KEEP(c, y) { \
        T* state = shared + (c & 1) * room; \
        _Pragma("unroll") \
        for (int e = 0; e < PER; e++) { \
            int i = first + e; \
            if (i >= m) continue; \
            state[L + i] = y[e]; \
            if (i >= m - L) state[i - (m - L)] = y[e]; \
            if (i < L) state[L + m + i] = y[e]; \
        } \
        __syncthreads(); \
    }
    const int follows = start && group;
    T y[PER];
    if (follows) {
        start += ((i64)blockIdx.x * gridDim.y + group - 1) * m;
        #pragma unroll
        for (int e = 0; e < PER; e++) y[e] = first + e < m ? start[first + e] : 0;
        KEEP(0, y)
    }
    AHEAD(0)
    for (int c = 0; c < last; c++) {
        #pragma unroll
        for (int e = 0; e < PER; e++) y[e] = ahead[e];
        AHEAD(c + 1)
        if ((c || follows) && first < m) {
            const T* state = shared + (c & 1) * room;
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
        T* to = out + PLACE(c) * out_step;
        #pragma unroll
        for (int e = 0; e < PER; e++)
            if (first + e < m) to[first + e] = y[e];
        KEEP(c + 1, y)
    }
}

"""

_COLUMNS = r"""
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
    RING(op) \
    T l[4], d[4], u[4]; \
    _Pragma("unroll") \
    for (int e = 0; e < 4; e++) { \
        int i = wrap(base + e, m); \
        l[e] = below(lower, upper, i, m, transposed); \
        d[e] = diagonal[i]; \
        u[e] = above(lower, upper, i, m, transposed); \
    }

extern "C" __global__ void __launch_bounds__(128) fill(const T* rings, T* K, int m, int k, int r) {
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
    const T* rings, const T* dK, T* Z, int m, int k, int r
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

// The gradients of upper, lower and diagonal of each operator, by chunk: parts (s, 3, r chunks, m).
extern "C" __global__ void __launch_bounds__(128) flow(
    const T* rings, const T* K, const T* dK, const T* Z, T* parts, int m, int k, int r
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
    const i64 whole = (i64)r * chunks * m;
    T* part = parts + 3 * op * whole + ((vector - op * r) * chunks + chunk) * m;
    store(part, base, lane, m, gu);
    store(part + whole, base, lane, m, gl);
    store(part + 2 * whole, base, lane, m, gd);
}
"""


@cache
def chunk_length(dtype: torch.dtype, m: int) -> int:
    """L: the longest whose band, 2L + 1 entries for each of m places, fits in a block's registers, if any."""
    longest = 16 if m <= 1024 or m > IN_REGISTERS else 8 if m <= 2048 else 4
    longest //= dtype.itemsize // 4
    return min(longest, 1 << (m.bit_length() - 1))  # not beyond the ring


@cache
def source(dtype: torch.dtype, m: int, steps: int | None = None) -> str:
    """The kernels for chunks, or those for groups of so many `steps`."""
    L, together = steps or chunk_length(dtype, m), 16 // dtype.itemsize
    known = {
        "T": "float" if dtype == torch.float32 else "double",
        "L": L,
        "PACKED": int(m % together == 0 and L % together == 0),
        "PER": PER,
        "THREADS": _chain_threads(m),
    }
    head = "".join(f"#define {key} {value}\n" for key, value in known.items())
    if steps:
        return head + _BANDS + _LEAPS
    return head + _BANDS + (_CHAIN if m <= IN_REGISTERS else "") + _COLUMNS


def _chain_threads(m: int) -> int:
    return -(-m // (32 * PER)) * 32


def _chain_bytes(dtype: torch.dtype, m: int) -> int:
    together = 16 // dtype.itemsize
    room = (m + 2 * chunk_length(dtype, m) + PER + 2 * together) // together * together
    return 2 * room * dtype.itemsize


def _launch(
    name: str,
    like: Tensor,
    grid: tuple[int, int],
    arguments: list[Any],
    steps: int | None = None,
    times: int = 1,
    moves: tuple[int, ...] = (),
) -> None:
    """Run a kernel on (s, .., m), so many `times`."""
    m, dtype = like.shape[-1], like.dtype
    threads, shared = (_chain_threads(m), _chain_bytes(dtype, m)) if name == "chain" else (128, 0)
    of = source(dtype, m, steps)
    nvrtc.launch(of, name, like.device, (*grid, 1), threads, arguments, shared, times, moves)


class _Cut(NamedTuple):
    """Time in chunks and groups, for rings (s, 3 + r, m)."""

    chunks: int
    size: int  # chunks in a group
    groups: int

    @classmethod
    def of(cls, dtype: torch.dtype, m: int, k: int) -> _Cut:
        L = chunk_length(dtype, m)
        chunks = -(-k // L)
        size = 1 if m > IN_REGISTERS else LEAP // L if chunks > GROUPED else chunks
        return cls(chunks, size, -(-chunks // size))


@cache
def most() -> int:
    """Entries of all Krylov matrices that are held: as many as this device has memory to train with."""
    if not torch.cuda.is_available():
        return MOST
    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    return int(min(MOST, device.total_memory // BYTES))


def krylov_columns(rings: Tensor, k: int) -> Tensor:
    """The Krylov columns of stacked ring operators.

    Args:
        rings: shape (s, 3 + r, m): upper, lower, diagonal and start vectors of each.
        k: how many columns.

    Returns:
        Shape (s, r, k, m): column j is a row of it.
    """
    s, r, m = rings.shape[0], rings.shape[1] - 3, rings.shape[2]
    if s * r > VECTORS:
        return torch.cat([krylov_columns(some, k) for some in rings.split(VECTORS // r)])
    rings, K = rings.contiguous().resolve_neg(), rings.new_empty(s, r, k, m)
    if K.numel() == 0:
        return K
    L, cut = chunk_length(K.dtype, m), _Cut.of(K.dtype, m, k)
    K[:, :, 0] = rings[:, 3:]
    _leap(rings, K, cut.groups, k * m, cut.size * L * m, steps=cut.size * L)
    if cut.size > 1:
        B, step = _bands(rings, transposed=False), (k * m, L * m)
        _launch("chain", K, (s * r, cut.groups), [B, K, 0, K, m, r, *cut[:2], 0, 0, *step, *step, 0])
    if L > 1:
        _launch("fill", K, _windows(K, cut.chunks), [rings, K, m, k, r])
    return K


def krylov_adjoint(rings: Tensor, K: Tensor, dK: Tensor) -> Tensor:
    """The gradient of `krylov_columns` in the rings."""
    s, r, k, m = K.shape
    if s * r > VECTORS:
        some = zip(*(t.split(VECTORS // r) for t in (rings, K, dK)), strict=True)
        return torch.cat([krylov_adjoint(*tensors) for tensors in some])
    rings, K, dK = (t.contiguous().resolve_neg() for t in (rings, K, dK))
    if K.numel() == 0:
        return torch.zeros_like(rings)
    cut = _Cut.of(K.dtype, m, k)
    Z, parts = K.new_empty(s, r, cut.chunks, m), K.new_empty(s, 3, r * cut.chunks, m)
    windows = _windows(K, cut.chunks)
    _launch("local", K, windows, [rings, dK, Z, m, k, r])
    if cut.size == 1:
        _leap(rings, Z, cut.groups, cut.chunks * m, -m, steps=chunk_length(K.dtype, m), adjoint=True)
    else:
        B, step, start = _bands(rings, transposed=True), (cut.chunks * m, m), None
        given = [m, r, *cut[:2], 1, 1, *step]
        if cut.groups > 1:  # what each group leaves of itself alone, then of all before it
            start = K.new_empty(s, r, cut.groups, m)
            _launch("chain", K, (s * r, cut.groups), [B, Z, 0, start, *given, cut.groups * m, 0, m])
            _leap(rings, start, cut.groups, cut.groups * m, m, steps=LEAP, adjoint=True)
        _launch("chain", K, (s * r, cut.groups), [B, Z, 0 if start is None else start, Z, *given, *step, 0])
    _launch("flow", K, windows, [rings, K, dK, Z, parts, m, k, r])
    found = torch.empty_like(rings)
    torch.sum(parts, 2, out=found[:, :3])
    found[:, 3:] = Z[:, :, 0]
    return found


def _leap(
    rings: Tensor, x: Tensor, count: int, vector: int, step: int, *, steps: int, adjoint: bool = False
) -> None:
    """Each of `count` vectors from the one before by A^steps, or plus that by its transpose.

    They stand `step` entries apart in x, from the last to the first where that is negative, and those of the
    next start vector `vector` entries further.
    """
    if count == 1:
        return
    s, r, m = x.shape[0], x.shape[1], x.shape[-1]
    apart = step * x.element_size()
    first = x.data_ptr() + (apart * (1 - count) if step < 0 else 0)
    B = _bands(rings, steps, transposed=adjoint)
    given = [B, first, first + apart, m, r, vector, int(adjoint)]
    _launch("leap", x, (-(-m // 4), s * r), given, steps, count - 1, (0, apart, apart))


def _bands(rings: Tensor, steps: int | None = None, *, transposed: bool) -> Tensor:
    s, r, m = rings.shape[0], rings.shape[1] - 3, rings.shape[2]
    L = steps or chunk_length(rings.dtype, m)
    B = rings.new_empty(s, m, 2 * L + 1)
    _launch("bands", rings, (-(-m // 4), s), [rings, B, m, r, int(transposed)], steps)
    return B


def _windows(like: Tensor, chunks: int) -> tuple[int, int]:
    """Blocks of four warps for all chunks, and vectors."""
    m = like.shape[-1]
    segments = -(-m // (128 - 2 * chunk_length(like.dtype, m)))
    return -(-chunks * segments // 4), like.shape[0] * like.shape[1]
