"""CUDA kernels, compiled at run time from the source below by NVRTC, which comes with torch.

    krylov_columns     all Krylov columns of a ring operator, one to four blocks a vector
    krylov_adjoint     their adjoint, with the gradients of the operator, one block a vector
    contract           sum_i a[b, i, f] g[i, f] of spectra, without an intermediate

A warp keeps a window of 32 E neighbouring entries in registers, E a lane: its own and a halo of 16 on
either side. A step of the stencil spoils one entry at each end of a window, so after 16 steps the halos
are used up and the warps exchange what they own through shared memory. Writing the columns is what takes
the time, about 32 bytes a clock and multiprocessor: hence several blocks a vector, each of which computes
all columns up to its own and writes its own. The adjoint has its columns brought to shared memory DEPTH
steps before it needs them. Windows run around the ring, which makes every size right, however small.
`unavailable` says why the kernels cannot be used; the plain form of `tridiagonal` is then taken, and is
the oracle in the tests.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

_SOURCE = r"""
typedef long long i64;
#define FULL 0xffffffffu
#define OWN (32 * E - 2 * HALO)
#define SIDE (HALO / E)
#define WIDTH (PACKED ? 16 / (int)sizeof(T) : 1)  // entries that move together

struct alignas(PACKED ? 16 : sizeof(T)) Pack { T v[WIDTH]; };

__device__ __forceinline__ int wrap(int p, int m) { p %= m; return p < 0 ? p + m : p; }

// Where a lane's E entries lie, a pack at a time, and whether this lane owns them. A pack never wraps.
struct Place {
    int base, at[E / WIDTH];
    bool owner;
    __device__ Place(int m) {
        int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        base = warp * OWN - HALO + lane * E;
        owner = lane >= SIDE && lane < 32 - SIDE;
        #pragma unroll
        for (int p = 0; p < E / WIDTH; p++) at[p] = wrap(base + p * WIDTH, m);
    }
};

__device__ __forceinline__ void load(const T* from, const Place& place, T* x) {
    #pragma unroll
    for (int p = 0; p < E / WIDTH; p++) {
        Pack pack = *reinterpret_cast<const Pack*>(from + place.at[p]);
        #pragma unroll
        for (int e = 0; e < WIDTH; e++) x[p * WIDTH + e] = pack.v[e];
    }
}

__device__ __forceinline__ void store(T* to, const Place& place, const T* x, int m) {
    if (!place.owner) return;
    #pragma unroll
    for (int p = 0; p < E / WIDTH; p++) {
        Pack pack;
        #pragma unroll
        for (int e = 0; e < WIDTH; e++) pack.v[e] = x[p * WIDTH + e];
        if (place.base + p * WIDTH < m) *reinterpret_cast<Pack*>(to + place.base + p * WIDTH) = pack;
    }
}

// Piece blockIdx.y writes its share of the columns; those before it are computed and not written.
extern "C" __global__ void __launch_bounds__(THREADS) krylov_columns(
    const T* lower, const T* diagonal, const T* upper, const T* V, T* K, int m, int k, int r
) {
    extern __shared__ __align__(16) T shared[];
    const int vector = blockIdx.x, op = vector / r;
    const int share = (k + gridDim.y - 1) / gridDim.y, begin = blockIdx.y * share;
    const int end = min(begin + share, k);
    Place place(m);
    T l[E], d[E], u[E], x[E];
    load(lower + (i64)op * m, place, l);
    load(diagonal + (i64)op * m, place, d);
    load(upper + (i64)op * m, place, u);
    load(V + (i64)vector * m, place, x);
    T* out = K + (i64)vector * k * m;
    for (int j = 0; j < end; j++) {
        if (j >= begin) store(out + (i64)j * m, place, x, m);
        T left = __shfl_up_sync(FULL, x[E - 1], 1), right = __shfl_down_sync(FULL, x[0], 1);
        #pragma unroll
        for (int e = 0; e < E; e++) {
            T here = x[e], after = e == E - 1 ? right : x[e + 1];
            x[e] = l[e] * left + d[e] * here + u[e] * after;
            left = here;
        }
        if (j % HALO == HALO - 1) {
            T* state = shared + (j / HALO & 1) * SIZE;  // two in turn: one barrier is enough
            store(state, place, x, m);
            __syncthreads();
            load(state, place, x);
        }
    }
}

__device__ __forceinline__ void fetch(const T* from, T* to, int m) {
    for (int q = threadIdx.x * WIDTH; q < m; q += blockDim.x * WIDTH) {
        unsigned at = (unsigned)__cvta_generic_to_shared(to + q);
        if (PACKED) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at), "l"(from + q));
        else asm volatile(
            "cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(at), "l"(from + q), "n"((int)sizeof(T))
        );
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) krylov_adjoint(
    const T* lower, const T* diagonal, const T* upper, const T* K, const T* dK,
    T* dV, T* dl, T* dd, T* du, int m, int k, int r
) {
    extern __shared__ __align__(16) T shared[];  // a state, then DEPTH columns of K and of dK
    const int vector = blockIdx.x, op = vector / r;
    Place place(m);
    T l[E], d[E], u[E];  // of the transpose: l[e] = lower at p + 1, u[e] = upper at p - 1
    load(diagonal + (i64)op * m, place, d);
    #pragma unroll
    for (int e = 0; e < E; e++) {
        l[e] = lower[(i64)op * m + wrap(place.base + e + 1, m)];
        u[e] = upper[(i64)op * m + wrap(place.base + e - 1, m)];
    }
    T carry[E], gl[E], gd[E], gu[E], x[E], g[E];
    #pragma unroll
    for (int e = 0; e < E; e++) carry[e] = gl[e] = gd[e] = gu[e] = 0;
    const T* columns = K + (i64)vector * k * m;
    const T* gradients = dK + (i64)vector * k * m;
    T* ring = shared + SIZE;
    #define FETCH(t) { \
        if ((t) < k) { \
            T* slot = ring + (t) % DEPTH * 2 * SIZE; \
            fetch(columns + (i64)(k - 1 - (t)) * m, slot, m); \
            fetch(gradients + (i64)(k - 1 - (t)) * m, slot + SIZE, m); \
        } \
        asm volatile("cp.async.commit_group;"); \
    }
    for (int t = 0; t < DEPTH - 1; t++) FETCH(t)
    for (int t = 0; t < k; t++) {
        asm volatile("cp.async.wait_group %0;" :: "n"(DEPTH - 2));
        __syncthreads();  // column t is here, and all are done with the slot that is filled next
        FETCH(t + DEPTH - 1)
        const T* slot = ring + t % DEPTH * 2 * SIZE;
        load(slot, place, x);
        load(slot + SIZE, place, g);
        T before = __shfl_up_sync(FULL, x[E - 1], 1), after = __shfl_down_sync(FULL, x[0], 1);
        T left = __shfl_up_sync(FULL, carry[E - 1], 1), right = __shfl_down_sync(FULL, carry[0], 1);
        #pragma unroll
        for (int e = 0; e < E; e++) {
            T c = carry[e];
            gl[e] += c * (e ? x[e - 1] : before);
            gd[e] += c * x[e];
            gu[e] += c * (e == E - 1 ? after : x[e + 1]);
            carry[e] = g[e] + d[e] * c + l[e] * (e == E - 1 ? right : carry[e + 1]) + u[e] * left;
            left = c;
        }
        if (t % HALO == HALO - 1) {
            store(shared, place, carry, m);
            __syncthreads();
            load(shared, place, carry);
        }
    }
    store(dV + (i64)vector * m, place, carry, m);
    store(dl + (i64)vector * m, place, gl, m);
    store(dd + (i64)vector * m, place, gd, m);
    store(du + (i64)vector * m, place, gu, m);
}
"""

_CONTRACT = r"""
struct __align__(8) C { float x, y; };

extern "C" __global__ void contract(const C* a, const C* g, C* out, int r, int f) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= f) return;
    a += (long long)blockIdx.y * r * f + i;
    float x = 0, y = 0;
    for (int j = 0; j < r; j++) {
        C p = a[(long long)j * f], q = g[(long long)j * f + i];
        x += p.x * q.x - p.y * q.y;
        y += p.x * q.y + p.y * q.x;
    }
    out[(long long)blockIdx.y * f + i] = C{x, y};
}
"""

_LARGEST = 4096
_HALO = 16
_SHARED = 160 << 10  # bytes that the columns on their way may take


class _Shape(NamedTuple):
    """How a ring is spread over a block.

    entries: a lane; depth: columns on their way in the adjoint; warps: in a block; packed: whether 16
    bytes move at a time; size: room for a vector.
    """

    entries: int
    depth: int
    warps: int
    packed: bool
    size: int


@cache
def _shape(dtype: torch.dtype, m: int) -> _Shape:
    entries = 4 if m <= 1536 else 8
    packed = m % (16 // dtype.itemsize) == 0
    size = -(-m // 4) * 4
    depth = max(2, min(8, _SHARED // (2 * size * dtype.itemsize)))
    return _Shape(entries, depth, -(-m // (32 * entries - 2 * _HALO)), packed, size)


@cache
def unavailable() -> str | None:
    """Why the kernels cannot be used on this machine, or None where they can."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    if not hasattr(torch.cuda, "_compile_kernel"):
        return "this torch cannot compile CUDA kernels at run time"
    try:
        _kernel("contract", torch.float32, None)
    except RuntimeError as error:
        return f"NVRTC failed: {error}"
    return None


def serves(m: int, *tensors: Tensor) -> bool:
    """Whether the stencil kernels take these tensors."""
    first = tensors[0]
    if not first.is_cuda or torch.compiler.is_compiling() or unavailable():
        return False
    if first.dtype not in (torch.float32, torch.float64):
        return False
    same = all(t.dtype == first.dtype and t.device == first.device for t in tensors)
    return same and m <= _LARGEST


@cache
def _kernel(name: str, dtype: torch.dtype, shape: _Shape | None) -> Any:
    if shape is None:
        return torch.cuda._compile_kernel(_CONTRACT, name)
    values = {
        "T": "float" if dtype == torch.float32 else "double",
        "E": shape.entries,
        "HALO": _HALO,
        "DEPTH": shape.depth,
        "PACKED": int(shape.packed),
        "SIZE": shape.size,
        "THREADS": 32 * shape.warps,
    }
    head = "".join(f"#define {key} {value}\n" for key, value in values.items())
    kernel = torch.cuda._compile_kernel(head + _SOURCE, name)
    if (needed := _shared_bytes(name, dtype, shape)) >= 48 << 10:
        kernel.set_shared_memory_config(needed)
    return kernel


def _shared_bytes(name: str, dtype: torch.dtype, shape: _Shape) -> int:
    vectors = 2 if name == "krylov_columns" else 1 + 2 * shape.depth
    return vectors * shape.size * dtype.itemsize


def _launch(name: str, grid: tuple[int, int, int], m: int, arguments: list[Any]) -> None:
    dtype = arguments[0].dtype
    shape = _shape(dtype, m)
    with torch.cuda.device(arguments[0].device):
        kernel = _kernel(name, dtype, shape)
        kernel(grid, (32 * shape.warps, 1, 1), arguments, _shared_bytes(name, dtype, shape))


def krylov_columns(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, k: int) -> Tensor:
    """The Krylov columns of stacked ring operators.

    Args:
        lower, diagonal, upper: shape (s, m).
        V: start vectors, shape (s, r, m).
        k: how many columns.

    Returns:
        Shape (s, r, k, m): column j is a row of it.
    """
    s, r, m = V.shape
    K = V.new_empty(s, r, k, m)
    ring = [t.contiguous() for t in (lower, diagonal, upper, V)]
    pieces = max(1, min(4, 128 // (s * r), k // 64))
    _launch("krylov_columns", (s * r, pieces, 1), m, [*ring, K, m, k, r])
    return K


def krylov_adjoint(
    lower: Tensor, diagonal: Tensor, upper: Tensor, K: Tensor, dK: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `krylov_columns` in lower, diagonal, upper (s, m) and V (s, r, m)."""
    s, r, k, m = K.shape
    dV, dl, dd, du = (K.new_empty(s, r, m) for _ in range(4))
    inputs = [t.contiguous() for t in (lower, diagonal, upper, K, dK)]
    _launch("krylov_adjoint", (s * r, 1, 1), m, [*inputs, dV, dl, dd, du, m, k, r])
    return dl.sum(1), dd.sum(1), du.sum(1), dV


def contracts(a: Tensor) -> bool:
    """Whether `contract` takes these spectra: plain ones on a GPU, not a tracer's or vmap's."""
    if not a.is_cuda or a.ndim != 3 or a.dtype != torch.complex64:
        return False
    if torch.compiler.is_compiling() or unavailable():
        return False
    try:
        return a.data_ptr() != 0 or a.numel() == 0
    except RuntimeError:  # no storage of its own
        return False


def contract(a: Tensor, g: Tensor) -> Tensor:
    """sum_i a[b, i, f] g[i, f] for complex64 spectra, contiguous: (b, r, f) and (r, f) to (b, f)."""
    b, r, f = a.shape
    out = a.new_empty(b, f)
    with torch.cuda.device(a.device):
        _kernel("contract", torch.float32, None)((-(-f // 256), b, 1), (256, 1, 1), [a, g, out, r, f])
    return out
