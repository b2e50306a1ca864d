"""A whole square LDR-SD product for inference on a GPU: the circulant pair with kernels between the FFTs.

As in `compiled_pair` both shifts are Z_{-1} after a scaling by D = diag(2^{j/n}), so that a real row of n
numbers is one complex row of h = n / 2, x_j + i x_{j+h}, and every transform is a complex FFT of length
h:

    U = F T (P_C D x),  S = F T (P_C x)             T the turns e^{i pi j / n}, F the DFT of length h
    z_i = D^{-1} T^{-1} F^{-1} (right_i U)          i = 1 .. r + 1, `right` conjugated spectra
    y = P_A (T^{-1} F^{-1} (sum_{i <= r} left_i F T z_i + left_{r+1} S) + z_{r+1})

2r + 4 of them a row. What lies between them is one kernel each, compiled at run time. No row meets
another, so one that is not finite, or much larger, does not harm the others. The tests hold the kernels,
run as C++, to the definition of M.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...kernels.cuda import nvrtc, unavailable
from ..fft import conjugate, is_smooth
from .circulant_pair import generators
from .guard import Side

_THREADS = 256

SOURCE = r"""
typedef long long i64;
struct __align__(8) Z { float re, im; };
__device__ __forceinline__ Z times(Z a, Z b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
__device__ __forceinline__ Z back(Z a, Z turn) { return times(a, {turn.re, -turn.im}); }

// A thread has one place j of h, and with it j + h, in one row p of b.
#define PLACE int j = blockIdx.x * blockDim.x + threadIdx.x, p = blockIdx.y, b = gridDim.y; \
    if (j >= h) return; \
    i64 at = (i64)p * h + j, all = (i64)b * h;

extern "C" __global__ void enter(
    const float* x, const float* first, const float* second, const Z* turn, Z* out, int h
) {
    PLACE
    const float* row = x + 2 * (i64)p * h;
    float low = row[j], high = row[j + h];
    out[at] = times({low * first[j], high * first[j + h]}, turn[j]);
    out[at + all] = times({low * second[j], high * second[j + h]}, turn[j]);
}

extern "C" __global__ void spread(const Z* U, const Z* right, Z* out, int r, int h) {
    PLACE
    Z u = U[at];
    for (int i = 0; i < r; i++) out[at + i * all] = times(u, right[(i64)i * h + j]);
}

extern "C" __global__ void scale(const Z* turn, const float* between, Z* z, int r, int h) {
    PLACE
    Z t = turn[j];
    float low = between[j], high = between[j + h];
    for (int i = 0; i < r; i++) {
        Z plain = back(z[at + i * all], t);
        z[at + i * all] = times({plain.re * low, plain.im * high}, t);
    }
}

extern "C" __global__ void gather(const Z* w, const Z* S, const Z* left, Z* out, int r, int h) {
    PLACE
    Z y = times(S[at], left[(i64)r * h + j]);
    for (int i = 0; i < r; i++) {
        Z t = times(w[at + i * all], left[(i64)i * h + j]);
        y.re += t.re;
        y.im += t.im;
    }
    out[at] = y;
}

extern "C" __global__ void leave(
    const Z* y, const Z* z, const Z* turn, const float* P, const float* aside, float* out, int h
) {
    PLACE
    Z a = back(y[at], turn[j]), c = back(z[at], turn[j]);
    float* row = out + 2 * (i64)p * h;
    row[j] = a.re * P[j] + c.re * aside[j];
    row[j + h] = a.im * P[j + h] + c.im * aside[j + h];
}
"""


class CudaPair(NamedTuple):
    """M prepared, in float32 and complex64."""

    enter: Tensor  # P_C D, (n,)
    beside: Tensor  # P_C
    between: Tensor  # D^{-1}
    leave: Tensor  # P_A
    aside: Tensor  # P_A D^{-1}
    turn: Tensor  # e^{i pi j / n}, (h,)
    right: Tensor  # (r + 1, h): conjugated spectra over h
    left: Tensor  # (r + 1, h): spectra over h


def why_not(A: Side, C: Side) -> str | None:
    """Why a layer with these operators cannot be prepared, or None."""
    n = A[2].shape[-1]
    if not A[2].is_cuda:
        return "for GPUs"
    if (reason := unavailable()) is not None:
        return reason
    if C[2].shape[-1] != n or n % 2 or not is_smooth(n // 2):
        return "for square matrices of an even size that is a product of 2, 3, 5 and 7"
    return None if A[2].dtype == torch.float32 else "for float32"


def prepare(A: Side, C: Side) -> CudaPair:
    """Prepare M = sum_i K(A, g_i) K(C, h_i)^T of float32."""
    n = A[2].shape[-1]
    P_A, left, P_C, right = generators(A, C, -1.0, -0.5)
    j = torch.arange(n, dtype=torch.float64, device=left.device)
    D, turn = 2.0 ** (j / n), _turns(j, n)
    right, left = conjugate(_spectra(right / D, turn)), _spectra(left, turn)
    scalings = (P_C * D, P_C, 1 / D, P_A, P_A / D)
    return CudaPair(
        *(t.float() for t in scalings),
        *(t.to(torch.complex64) for t in (turn, right / (n // 2), left / (n // 2))),
    )


def _turns(j: Tensor, n: int) -> Tensor:
    angle = j[: n // 2] * (math.pi / n)
    return torch.polar(torch.ones_like(angle), angle)


def _spectra(v: Tensor, turn: Tensor) -> Tensor:
    h = turn.shape[0]
    return torch.fft.fft(torch.complex(v[..., :h], v[..., h:]) * turn)


def matmul(K: CudaPair, x: Tensor) -> Tensor:
    """M x for prepared M: (b, n) to (b, n)."""
    b, n = x.shape
    r, h = len(K.right) - 1, n // 2
    both = K.turn.new_empty(2, b, h)
    _launch("enter", both, [x.contiguous(), K.enter, K.beside, K.turn, both, h])
    U, S = torch.fft.fft(both).unbind(0)
    z = K.turn.new_empty(r + 1, b, h)
    _launch("spread", U, [U, K.right, z, r + 1, h])
    z = torch.fft.ifft(z, norm="forward")
    _launch("scale", U, [K.turn, K.between, z, r, h])
    Y = torch.empty_like(U)
    _launch("gather", U, [torch.fft.fft(z[:r]), S, K.left, Y, r, h])
    y = torch.fft.ifft(Y, norm="forward")
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _launch("leave", U, [y, z[r], K.turn, K.leave, K.aside, out, h])
    return out


def _launch(name: str, like: Tensor, arguments: list[Any]) -> None:
    """One thread for each place of each row of `like` (.., b, h)."""
    b, h = like.shape[-2:]
    nvrtc.launch(SOURCE, name, like.device, (-(-h // _THREADS), b, 1), _THREADS, arguments)
