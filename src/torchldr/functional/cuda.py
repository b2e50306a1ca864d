"""CUDA kernels, compiled at run time from the source below by NVRTC, which comes with torch.

    krylov_columns     all Krylov columns of a ring operator, one block a vector
    krylov_adjoint     their adjoint, with the gradients of the operator
    contract           sum_i a[b, i, f] g[i, f] of spectra, without an intermediate

A warp keeps a window of 32 E neighbouring entries in registers, E a lane: its own 32 E - 64 and a halo of
32 on either side. A step of the stencil spoils one entry at each end of a window, so after 32 steps the
halos are used up and the warps exchange what they own through shared memory: 31 of 32 steps need no
barrier. Windows run around the ring, which makes every size right, however small. `unavailable` says why
the kernels cannot be used; the plain form of `tridiagonal` is then taken, and is the oracle in the tests.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

_SOURCE = r"""
typedef long long i64;
#define FULL 0xffffffffu
#define OWN (32 * E - 64)

__device__ __forceinline__ int wrap(int p, int m) { p %= m; return p < 0 ? p + m : p; }

// Where a lane's E entries lie, and whether this lane owns them.
struct Place {
    int base, index[E];
    bool owner, straight;
    __device__ Place(int m) {
        int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        base = warp * OWN - 32 + lane * E;
        owner = lane >= 32 / E && lane < 32 - 32 / E;
        straight = base >= 0 && base + E <= m;
        #pragma unroll
        for (int e = 0; e < E; e++) index[e] = wrap(base + e, m);
    }
};

__device__ __forceinline__ void load(const T* from, const Place& at, T* x) {
    if (at.straight) {
        #pragma unroll
        for (int e = 0; e < E; e++) x[e] = from[at.base + e];
    } else {
        #pragma unroll
        for (int e = 0; e < E; e++) x[e] = from[at.index[e]];
    }
}

__device__ __forceinline__ void store(T* to, const Place& at, const T* x, int m) {
    if (!at.owner) return;
    if (at.straight) {
        #pragma unroll
        for (int e = 0; e < E; e++) to[at.base + e] = x[e];
    } else {
        #pragma unroll
        for (int e = 0; e < E; e++) if (at.base + e < m) to[at.base + e] = x[e];
    }
}

__device__ __forceinline__ void exchange(T* shared, const Place& at, T* x, int m) {
    store(shared, at, x, m);
    __syncthreads();
    load(shared, at, x);
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS) krylov_columns(
    const T* lower, const T* diagonal, const T* upper, const T* V, T* K, int m, int k, int r
) {
    extern __shared__ T shared[];
    const int vector = blockIdx.x, op = vector / r;
    Place at(m);
    T l[E], d[E], u[E], x[E];
    load(lower + (i64)op * m, at, l);
    load(diagonal + (i64)op * m, at, d);
    load(upper + (i64)op * m, at, u);
    load(V + (i64)vector * m, at, x);
    T* out = K + (i64)vector * k * m;
    for (int j = 0;; j++) {
        store(out, at, x, m);
        out += m;
        if (j == k - 1) break;
        T left = __shfl_up_sync(FULL, x[E - 1], 1), right = __shfl_down_sync(FULL, x[0], 1);
        #pragma unroll
        for (int e = 0; e < E; e++) {
            T here = x[e], after = e == E - 1 ? right : x[e + 1];
            x[e] = l[e] * left + d[e] * here + u[e] * after;
            left = here;
        }
        if ((j & 31) == 31) exchange(shared, at, x, m);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) krylov_adjoint(
    const T* lower, const T* diagonal, const T* upper, const T* K, const T* dK,
    T* dV, T* dl, T* dd, T* du, int m, int k, int r
) {
    extern __shared__ T shared[];
    const int vector = blockIdx.x, op = vector / r;
    Place at(m);
    T l[E], d[E], u[E];  // of the transpose: l[e] = lower at p + 1, u[e] = upper at p - 1
    load(diagonal + (i64)op * m, at, d);
    #pragma unroll
    for (int e = 0; e < E; e++) {
        l[e] = lower[(i64)op * m + wrap(at.base + e + 1, m)];
        u[e] = upper[(i64)op * m + wrap(at.base + e - 1, m)];
    }
    T carry[E], gl[E], gd[E], gu[E], x[E], g[E], next_x[E], next_g[E];
    #pragma unroll
    for (int e = 0; e < E; e++) carry[e] = gl[e] = gd[e] = gu[e] = 0;
    const T* columns = K + ((i64)vector * k + k - 1) * m;
    const T* gradients = dK + ((i64)vector * k + k - 1) * m;
    load(columns, at, x);
    load(gradients, at, g);
    for (int j = k - 1; j >= 0; j--) {
        if (j) {
            columns -= m;
            gradients -= m;
            load(columns, at, next_x);
            load(gradients, at, next_g);
        }
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
        if (((k - 1 - j) & 31) == 31) exchange(shared, at, carry, m);
        #pragma unroll
        for (int e = 0; e < E; e++) { x[e] = next_x[e]; g[e] = next_g[e]; }
    }
    store(dV + (i64)vector * m, at, carry, m);
    store(dl + (i64)vector * m, at, gl, m);
    store(dd + (i64)vector * m, at, gd, m);
    store(du + (i64)vector * m, at, gu, m);
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

_LANE = {torch.float32: 8, torch.float64: 4}  # entries a lane
_LARGEST = 4096


@cache
def unavailable() -> str | None:
    """Why the kernels cannot be used on this machine, or None where they can."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    if not hasattr(torch.cuda, "_compile_kernel"):
        return "this torch cannot compile CUDA kernels at run time"
    try:
        _kernel("contract", torch.float32, 0)
    except RuntimeError as error:
        return f"NVRTC failed: {error}"
    return None


def serves(m: int, *tensors: Tensor) -> bool:
    """Whether the stencil kernels take these tensors."""
    first = tensors[0]
    if not first.is_cuda or torch.compiler.is_compiling() or unavailable():
        return False
    same = all(t.dtype == first.dtype and t.device == first.device for t in tensors)
    return same and m <= _largest(first.dtype)


def _largest(dtype: torch.dtype) -> int:
    return min(_LARGEST, 32 * _own(dtype)) if dtype in _LANE else 0


def _own(dtype: torch.dtype) -> int:
    return 32 * _LANE[dtype] - 64


def _warps(dtype: torch.dtype, m: int) -> int:
    return -(-m // _own(dtype))


@cache
def _kernel(name: str, dtype: torch.dtype, threads: int) -> Any:
    if name == "contract":
        return torch.cuda._compile_kernel(_CONTRACT, name)
    type_name = "float" if dtype == torch.float32 else "double"
    head = f"#define T {type_name}\n#define E {_LANE[dtype]}\n#define THREADS {threads}\n"
    return torch.cuda._compile_kernel(head + _SOURCE, name)


def _launch(name: str, vectors: int, m: int, arguments: list[Any]) -> None:
    dtype = arguments[0].dtype
    threads = 32 * _warps(dtype, m)
    kernel = _kernel(name, dtype, -(-threads // 256) * 256)
    with torch.cuda.device(arguments[0].device):
        kernel((vectors, 1, 1), (threads, 1, 1), arguments, m * dtype.itemsize)


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
    _launch("krylov_columns", s * r, m, [*ring, K, m, k, r])
    return K


def krylov_adjoint(
    lower: Tensor, diagonal: Tensor, upper: Tensor, K: Tensor, dK: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `krylov_columns` in lower, diagonal, upper (s, m) and V (s, r, m)."""
    s, r, k, m = K.shape
    dV, dl, dd, du = (K.new_empty(s, r, m) for _ in range(4))
    inputs = [t.contiguous() for t in (lower, diagonal, upper, K, dK)]
    _launch("krylov_adjoint", s * r, m, [*inputs, dV, dl, dd, du, m, k, r])
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
        _kernel("contract", torch.float32, 0)((-(-f // 256), b, 1), (256, 1, 1), [a, g, out, r, f])
    return out
