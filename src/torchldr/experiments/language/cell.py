"""One time step of many LSTM cells as a CUDA kernel each way, compiled at run time as in `functional.cuda`.

The plain form in `recurrence` takes six elementwise kernels forward and four backward, and a step of a small
LSTM takes as long as it has kernels. The plain form is the oracle: a test runs this source as plain C++.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from ...functional.cuda import unavailable

_THREADS = 128

# gates (R, T, B, 4, H) in the order o, i, f, g; c and h (R, T + 1, B, H), the state before step t at t.
SOURCE = r"""
typedef long long i64;

struct Place {
    i64 gate, before, after, output;
    int k;
    bool inside;
    __device__ Place(int t, int T, int R, int B, int H) {
        i64 p = (i64)blockIdx.x * blockDim.x + threadIdx.x;
        inside = p < (i64)R * B * H;
        k = (int)(p % H);
        i64 b = p / H % B, r = p / H / B;
        gate = ((r * T + t) * B + b) * 4 * H + k;
        before = ((r * (T + 1) + t) * B + b) * H + k;
        after = before + (i64)B * H;
        output = ((r * T + t) * B + b) * H + k;
    }
};

__device__ __forceinline__ Real sigmoid(Real x) { return 1 / (1 + exp(-x)); }

extern "C" __global__ void cell_forward(Real* gates, Real* c, Real* h, int t, int T, int R, int B, int H) {
    Place at(t, T, R, B, H);
    if (!at.inside) return;
    Real* a = gates + at.gate;
    Real o = sigmoid(a[0]), i = sigmoid(a[H]), f = sigmoid(a[2 * H]), g = tanh(a[3 * H]);
    a[0] = o; a[H] = i; a[2 * H] = f; a[3 * H] = g;
    Real cell = f * c[at.before] + i * g;
    c[at.after] = cell;
    h[at.after] = o * tanh(cell);
}

extern "C" __global__ void cell_backward(
    const Real* gates, const Real* c, const Real* dh, Real* dc, Real* da, int t, int T, int R, int B, int H
) {
    Place at(t, T, R, B, H);
    if (!at.inside) return;
    const Real* a = gates + at.gate;
    Real o = a[0], i = a[H], f = a[2 * H], g = a[3 * H];
    Real s = tanh(c[at.after]), d = dh[at.output];
    i64 p = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    Real e = dc[p] + d * o * (1 - s * s);
    Real* out = da + at.gate;
    out[0] = d * s * o * (1 - o);
    out[H] = e * g * i * (1 - i);
    out[2 * H] = e * c[at.before] * f * (1 - f);
    out[3 * H] = e * i * (1 - g * g);
    dc[p] = e * f;
}
"""


@cache
def _kernel(name: str, dtype: torch.dtype) -> Any:
    type_name = "float" if dtype == torch.float32 else "double"
    return torch.cuda._compile_kernel(f"#define Real {type_name}\n{SOURCE}", name)


def serves(t: Tensor) -> bool:
    """Whether the kernels take such tensors."""
    return t.is_cuda and t.dtype in (torch.float32, torch.float64) and unavailable() is None


def cell_forward(gates: Tensor, c: Tensor, h: Tensor, t: int) -> None:
    """Apply the nonlinearities to step t of gates (R, T, B, 4, H) and make the states after it, in place."""
    _launch("cell_forward", gates, [gates, c, h], t)


def cell_backward(gates: Tensor, c: Tensor, dh: Tensor, dc: Tensor, da: Tensor, t: int) -> None:
    """Step t of the gates' gradient da, from dh (R, T, B, H); dc (R, B, H) is carried to step t - 1."""
    _launch("cell_backward", gates, [gates, c, dh, dc, da], t)


def _launch(name: str, gates: Tensor, tensors: list[Any], t: int) -> None:
    R, T, B, _, H = gates.shape
    if not all(tensor.is_contiguous() for tensor in tensors):
        raise ValueError(f"{name}: expected contiguous tensors.")
    with torch.cuda.device(gates.device):
        grid = (-(-R * B * H // _THREADS), 1, 1)
        _kernel(name, gates.dtype)(grid, (_THREADS, 1, 1), [*tensors, t, T, R, B, H])
