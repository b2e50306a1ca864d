"""What lies between the FFTs of a plan's products on a GPU, in one kernel each; see `functional.port.levels`.

    to_cuts     add what a block had of its own, and lay out what meets at the cuts, padded
    join        rows of the joined blocks, and what is heard, four cuts to a sum
    part        the transpose of `join`
    deal        the transpose of `to_cuts`

In operations of torch these are some twenty passes over memory a level. For complex64 spectra; transforms
back are taken without their factor, which `join` and `part` bring in. Compiled at run time like the kernels
of `cuda`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fft import irfft, rfft

from . import nvrtc

SOURCE = r"""
typedef long long i64;
struct __align__(8) C { float x, y; };
__device__ __forceinline__ C add_product(C s, C a, C b) {
    return C{s.x + a.x * b.x - a.y * b.y, s.y + a.x * b.y + a.y * b.x};
}
__device__ __forceinline__ C add_conjugate(C s, C a, C b) {  // s + a conj(b)
    return C{s.x + a.x * b.x + a.y * b.y, s.y + a.y * b.x - a.x * b.y};
}

// q, u (2, b, J, N), own (2, b, 2J, N / 2) unless this is the first level, cuts (2, b, J / 2, 2N).
extern "C" __global__ void to_cuts(const float* q, const float* own, float* u, float* cuts,
                                   int b, int J, int N, int first) {
    int t = blockIdx.x * blockDim.x + threadIdx.x, side = blockIdx.y / b, i = blockIdx.y % b, j = blockIdx.z;
    if (t >= N) return;
    i64 at = ((i64)blockIdx.y * J + j) * N + t;
    float value = q[at];
    if (!first && t < N / 2) value += own[((i64)blockIdx.y * 2 * J + 2 * j + side) * (N / 2) + t];
    u[at] = value;
    if (side == j % 2 || J == 1) return;  // an outer port
    float* to = cuts + (((i64)(j % 2) * b + i) * (J / 2) + j / 2) * 2 * N + t;
    to[0] = value;
    to[N] = 0;
}

// Y (2, b, K, F), B (2, 2 + r, K, F), Q (2, b, K, F), heard (K / 4 or so, b, r, F).
extern "C" __global__ void join(const C* Y, const C* B, C* Q, C* heard,
                                int b, int K, int F, int r, int rows) {
    int f = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y, first = 4 * blockIdx.z;
    if (f >= F) return;
    int last = first + 4 < K ? first + 4 : K;
    i64 size = (i64)K * F;
    float scale = 0.5f / (F - 1);
    const C *R = Y + i * size + f, *L = R + b * size, *B0 = B + f, *B1 = B0 + (2 + r) * size;
    for (int v = rows ? 0 : 2; v < 2 + r; v++) {
        C sum = {0, 0};
        for (int cut = first; cut < last; cut++) {
            i64 at = (i64)cut * F;
            C value = add_product(v < 2 ? C{0, 0} : sum, R[at], B0[v * size + at]);
            sum = add_product(value, L[at], B1[v * size + at]);
            if (v < 2) Q[((i64)v * b + i) * size + at + f] = C{sum.x * scale, sum.y * scale};
        }
        if (v >= 2) heard[(((i64)blockIdx.z * b + i) * r + v - 2) * F + f] = C{sum.x * scale, sum.y * scale};
    }
}

// W (2, b, K, F), w (b, r, F), B (2, 2 + r, K, F), G (2, b, K, F).
extern "C" __global__ void part(const C* W, const C* w, const C* B, C* G, int b, int K, int F, int r) {
    int f = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y, cut = blockIdx.z;
    if (f >= F) return;
    i64 size = (i64)K * F, at = (i64)cut * F + f;
    float scale = 0.5f / (F - 1);
    C left = W[i * size + at], right = W[(b + i) * size + at];
    for (int side = 0; side < 2; side++) {
        const C* arrived = B + side * (2 + r) * size + at;
        C sum = add_conjugate(add_conjugate(C{0, 0}, left, arrived[0]), right, arrived[size]);
        for (int v = 0; v < r; v++)
            sum = add_conjugate(sum, w[((i64)i * r + v) * F + f], arrived[(2 + v) * size]);
        G[(side * b + i) * size + at] = C{sum.x * scale, sum.y * scale};
    }
}

// g, joined (2, b, K, 2N) to u (2, b, 2K, N).
extern "C" __global__ void deal(const float* g, const float* joined, float* u, int b, int K, int N) {
    int t = blockIdx.x * blockDim.x + threadIdx.x, side = blockIdx.y / b, i = blockIdx.y % b, j = blockIdx.z;
    if (t >= N) return;
    int second = j % 2;
    const float* from = side == second ? joined : g;
    u[((i64)blockIdx.y * 2 * K + j) * N + t] = from[(((i64)second * b + i) * K + j / 2) * 2 * N + t];
}
"""

_THREADS = 128
_MOST = 65535  # blocks of a grid, but along its first axis


def serves(B: list[Tensor], batch: int) -> bool:
    """Whether the kernels take products with these levels."""
    if not B or B[0].dtype != torch.complex64 or not B[0].is_cuda or torch.compiler.is_compiling():
        return False
    return 2 * batch <= _MOST and 2 * B[0].shape[2] <= _MOST and nvrtc.unavailable() is None


def _launch(name: str, length: int, y: int, z: int, arguments: list[Any]) -> None:
    grid = (-(-length // _THREADS), y, z)
    nvrtc.launch(SOURCE, name, arguments[0].device, grid, _THREADS, arguments)


def rows_up(u: Tensor, levels: list[Tensor], result: Tensor, *, top: bool) -> Tensor | None:
    """All levels for the rows of the leaves (2, b, J, N); what is heard is added to result (b, r, k)."""
    k, own = result.shape[-1], None
    for index, B in enumerate(levels):
        q = u.contiguous()
        (_, b, J, N), r = q.shape, B.shape[1] - 2
        u, cuts = torch.empty_like(q), q.new_empty(2, b, J // 2, 2 * N)
        first = own is None
        _launch("to_cuts", N, 2 * b, J, [q, q if first else own, u, cuts, b, J, N, int(first)])
        Y = rfft(cuts)
        F, sums = Y.shape[-1], -(-J // 8)
        rows = top or index + 1 < len(levels)
        joined, heard = torch.empty_like(Y) if rows else Y, Y.new_empty(sums, b, r, F)
        _launch("join", F, b, sums, [Y, B, joined, heard, b, J // 2, F, r, int(rows)])
        part = irfft(heard.sum(0) if sums > 1 else heard[0], n=2 * N, norm="forward")[..., :k]
        result[..., : part.shape[-1]] += part
        if rows:
            own, u = u, irfft(joined, n=2 * N, norm="forward")
    if not top:
        return None
    if own is not None:
        half = own.shape[-1]
        u[0, :, :, :half] += own[0, :, 0::2]
        u[1, :, :, :half] += own[1, :, 1::2]
    return u


def rows_down(du: Tensor, levels: list[Tensor], w: Tensor) -> Tensor:
    """All levels for cotangents (2, b, 1, N) of the rows of the whole, to those of the leaves."""
    for B in reversed(levels):
        (_, b, K, M), r = du.shape, B.shape[1] - 2
        hats, W = rfft(w[..., :M], n=M), rfft(du)
        F, G = W.shape[-1], torch.empty_like(W)
        _launch("part", F, b, K, [W, hats, B, G, b, K, F, r])
        g, joined = irfft(G, n=M, norm="forward"), du
        du = joined.new_empty(2, b, 2 * K, M // 2)
        _launch("deal", M // 2, 2 * b, 2 * K, [g, joined, du, b, K, M // 2])
    return du
