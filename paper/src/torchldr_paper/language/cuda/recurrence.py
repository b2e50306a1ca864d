"""The recurrence of many small LSTMs as one CUDA kernel each way, compiled as in `functional.cuda`.

A step of a small LSTM takes as long as it has kernels, and a batch has 35 steps. Here a block of 4H threads
keeps one replica's U, half of it in registers and half in shared memory, and takes four columns of the batch
through all steps: a thread is a gate's unit in the products and a column's unit in the cell between them. The
plain form in `recurrence` is the oracle: a test runs this source as plain C++.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchldr.kernels.cuda import nvrtc, unavailable

GATES = COLUMNS = 4  # a block's threads are gates x units, and columns x units
MOST_THREADS, MOST_BYTES_KEPT = 1024, 256  # of a block, and of a thread's registers

# gates (R, T, B, 4, H) in the order o, i, f, g; c and h (R, T + 1, B, H), the state before step t at t.
SOURCE = r"""
typedef long long i64;
struct __align__(4 * sizeof(Real)) Four { Real of[4]; };  // a number for each column, or four in a row

__device__ __forceinline__ Real sigmoid(Real x) { return 1 / (1 + exp(-x)); }

__device__ __forceinline__ void add(Real* sum, Real w, const Four& x) {
    #pragma unroll
    for (int b = 0; b < 4; b++) sum[b] += w * x.of[b];
}

// The sums over k of U[k] x[k], U in the two places where a thread keeps it.
__device__ __forceinline__ void multiply(const Real* kept, const Real* shared, const Four* x, Real* sum) {
    #pragma unroll
    for (int k = 0; k < H / 2; k++) add(sum, kept[k], x[k]);
    #pragma unroll 16
    for (int k = 0; k < H / 2; k++) add(sum, shared[k * 4 * H], x[H / 2 + k]);
}

extern "C" __global__ void __launch_bounds__(4 * H) recurrence_forward(
    Real* gates, Real* c, Real* h, const Real* U, int T, int B
) {
    extern __shared__ __align__(32) Real shared[];
    Four* state = (Four*)shared;           // h of the step before, (H,)
    Real* passed = shared + 4 * H;         // the gates of a step, (columns, 4H)
    Real* half = passed + 4 * 4 * H;       // the second half of U's rows, (H / 2, 4H)
    const int j = threadIdx.x, u = j % H, q = j / H;
    const int first = blockIdx.x * 4, own = first + q;
    const bool inside = own < B;
    const i64 r = blockIdx.y, place = (r * (T + 1) * B + own) * H + u, on = (i64)B * H;
    const Four* row = (const Four*)(U + (r * 4 * H + j) * H);
    Real kept[H / 2];
    #pragma unroll
    for (int k = 0; k < H / 8; k++) {
        Four near = row[k], far = row[H / 8 + k];
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            kept[4 * k + i] = near.of[i];
            half[(4 * k + i) * 4 * H + j] = far.of[i];
        }
    }
    Real cell = inside ? c[place] : 0;
    state[u].of[q] = inside ? h[place] : 0;
    __syncthreads();
    for (int t = 0; t < T; t++) {
        Real* a = gates + ((r * T + t) * B + first) * 4 * H + j;
        Real given[4], sum[4] = {0, 0, 0, 0};
        #pragma unroll
        for (int b = 0; b < 4; b++) given[b] = first + b < B ? a[b * 4 * H] : 0;
        multiply(kept, half + j, state, sum);
        #pragma unroll
        for (int b = 0; b < 4; b++) {
            Real x = given[b] + sum[b], y = q < 3 ? sigmoid(x) : tanh(x);
            passed[b * 4 * H + j] = y;
            if (first + b < B) a[b * 4 * H] = y;
        }
        __syncthreads();
        const Real* g = passed + q * 4 * H + u;
        cell = g[2 * H] * cell + g[H] * g[3 * H];
        Real out = g[0] * tanh(cell);
        state[u].of[q] = out;
        if (inside) {
            c[place + (t + 1) * on] = cell;
            h[place + (t + 1) * on] = out;
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(4 * H) recurrence_backward(
    const Real* gates, const Real* c, const Real* dh, const Real* U, Real* da, int T, int B
) {
    extern __shared__ __align__(32) Real shared[];
    Four* after = (Four*)shared;           // da of the step after, (4H,)
    Real* parts = shared + 4 * 4 * H;      // of U^T da by gate, (columns, 4H)
    Real* half = parts + 4 * 4 * H;        // the second half of each gate's columns of U, (H / 2, 4H)
    const int j = threadIdx.x, u = j % H, q = j / H;
    const int own = blockIdx.x * 4 + q;
    const bool inside = own < B;
    const i64 r = blockIdx.y;
    const Real* column = U + (r * 4 + q) * H * H + u;
    Real kept[H / 2];
    #pragma unroll
    for (int k = 0; k < H / 2; k++) {
        kept[k] = column[k * H];
        half[k * 4 * H + j] = column[(H / 2 + k) * H];
    }
    Real dc = 0;
    for (int t = T - 1; t >= 0; t--) {
        const i64 here = (r * T + t) * B + own, state = ((r * (T + 1) + t) * B + own) * H + u;
        const Real* a = gates + here * 4 * H + u;
        Real o = 0, i = 0, f = 0, g = 0, before = 0, behind = 0, d = 0;
        if (inside) {
            o = a[0]; i = a[H]; f = a[2 * H]; g = a[3 * H];
            before = c[state]; behind = c[state + (i64)B * H];
            d = dh[here * H + u];
        }
        if (t < T - 1) {
            Real sum[4] = {0, 0, 0, 0};
            multiply(kept, half + j, after + q * H, sum);
            #pragma unroll
            for (int b = 0; b < 4; b++) parts[b * 4 * H + j] = sum[b];
            __syncthreads();
            #pragma unroll
            for (int p = 0; p < 4; p++) d += parts[q * 4 * H + p * H + u];
        }
        Real s = tanh(behind), e = dc + d * o * (1 - s * s);
        Real found[4] = {
            d * s * o * (1 - o), e * g * i * (1 - i), e * before * f * (1 - f), e * i * (1 - g * g)
        };
        #pragma unroll
        for (int p = 0; p < 4; p++) {
            after[p * H + u].of[q] = found[p];
            if (inside) da[(here * 4 + p) * H + u] = found[p];
        }
        dc = e * f;
        __syncthreads();
    }
}
"""


def serves(gates: Tensor) -> bool:
    """Whether the kernels take such gates, (R, T, B, 4, H)."""
    H, size = gates.shape[-1], gates.element_size()
    fits = H % 8 == 0 and GATES * H <= MOST_THREADS and H // 2 * size <= MOST_BYTES_KEPT
    return gates.is_cuda and gates.dtype in _NAMES and fits and unavailable() is None


def forward(gates: Tensor, c: Tensor, h: Tensor, U: Tensor) -> None:
    """Take the states through all steps, in place.

    Args:
        gates: W x + b, (R, T, B, 4, H); becomes the gates after their nonlinearities.
        c, h: (R, T + 1, B, H), the first of each given.
        U: (R, 4H, H).
    """
    _launch("recurrence_forward", gates, [gates, c, h, U])


def backward(gates: Tensor, c: Tensor, dh: Tensor, U: Tensor) -> Tensor:
    """The gradient of the gates before their nonlinearities, from that of the outputs, (R, T, B, H)."""
    da = torch.empty_like(gates)
    _launch("recurrence_backward", gates, [gates, c, dh, U, da])
    return da


_NAMES = {torch.float32: "float", torch.float64: "double"}


def head(dtype: torch.dtype, H: int) -> str:
    """What the source is compiled for."""
    return f"#define Real {_NAMES[dtype]}\n#define H {H}\n"


def _shared_bytes(gates: Tensor) -> int:
    H = gates.shape[-1]
    return (2 * GATES * COLUMNS * H + 2 * H * H) * gates.element_size()


def _launch(name: str, gates: Tensor, tensors: list[Any]) -> None:
    R, T, B, _, H = gates.shape
    if not all(tensor.is_contiguous() for tensor in tensors):
        raise ValueError(f"{name}: expected contiguous tensors.")
    shared = _shared_bytes(gates)
    grid, source = (-(-B // COLUMNS), R, 1), head(gates.dtype, H) + SOURCE
    nvrtc.launch(source, name, gates.device, grid, GATES * H, [*tensors, T, B], shared)
