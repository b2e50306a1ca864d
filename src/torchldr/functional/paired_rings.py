"""A whole square LDR-SD product for batches on a GPU: closed rings, two vectors as one complex vector.

The matrix between the scalings is real, so it multiplies x_1 + i x_2 as it multiplies x_1 and x_2. With the
generators of `closed_rings`, T the turns e^{i pi j / n} and F the DFT of length n,

    U = F T s,  S = F s                       s = D_C (x_1 + i x_2)
    v_i = F^{-1} (conj(F T right_i) U)        i = 1 .. r + 1
    Y = sum_{i <= r} (F left_i) F T^{-1} v_i + (F left_{r+1}) S
    y = D_A (F^{-1} Y + T^{-1} v_{r+1}),

whose transforms are all complex, of length n and for half as many vectors, the form in which FFT libraries
are quickest: 2r + 4 for two vectors. Everything between them is one kernel each, compiled at run time.
The plain form below is their oracle, and the definition of M that of both.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import nvrtc
from .closed_rings import generators
from .cuda import unavailable
from .fft import conjugate, is_fast_length
from .subdiagonal import Side, convolution_scales

_THREADS = 256

SOURCE = r"""
typedef long long i64;
struct __align__(8) Z { float re, im; };
__device__ __forceinline__ Z times(Z a, Z b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
__device__ __forceinline__ Z back(Z a, Z turn) { return times(a, {turn.re, -turn.im}); }

// A thread has one place j of n and one pair p = blockIdx.y.
#define PLACE int j = blockIdx.x * blockDim.x + threadIdx.x, p = blockIdx.y, pairs = gridDim.y; \
    if (j >= n) return; \
    i64 at = (i64)p * n + j, all = (i64)pairs * n;

// Scaled pairs: first turned, then as they are.
extern "C" __global__ void pair(const float* x, const float* P, const Z* turn, Z* out, int b, int n) {
    PLACE
    const float* first = x + 2 * (i64)p * n + j;
    Z s = {first[0] * P[j], 2 * p + 1 < b ? first[n] * P[j] : 0.f};
    out[at] = times(s, turn[j]);
    out[at + all] = s;
}

extern "C" __global__ void spread(const Z* U, const Z* right, Z* out, int r, int n) {
    PLACE
    Z u = U[at];
    for (int i = 0; i < r; i++) out[at + i * all] = times(u, right[(i64)i * n + j]);
}

extern "C" __global__ void turn_back(const Z* turn, Z* v, int r, int n) {
    PLACE
    Z t = turn[j];
    for (int i = 0; i < r; i++) v[at + i * all] = back(v[at + i * all], t);
}

extern "C" __global__ void gather(const Z* w, const Z* S, const Z* left, Z* out, int r, int n) {
    PLACE
    Z y = times(S[at], left[(i64)r * n + j]);
    for (int i = 0; i < r; i++) {
        Z t = times(w[at + i * all], left[(i64)i * n + j]);
        y.re += t.re;
        y.im += t.im;
    }
    out[at] = y;
}

extern "C" __global__ void part(
    const Z* y, const Z* v, const Z* turn, const float* P, float* out, int b, int n
) {
    PLACE
    Z t = back(v[at], turn[j]);
    float* first = out + 2 * (i64)p * n + j;
    first[0] = (y[at].re + t.re) * P[j];
    if (2 * p + 1 < b) first[n] = (y[at].im + t.im) * P[j];
}
"""


class PairedRings(NamedTuple):
    """M prepared, in float32 and complex64."""

    P_A: Tensor  # (n,)
    P_C: Tensor
    turn: Tensor  # e^{i pi j / n}
    right: Tensor  # (r + 1, n): conjugated spectra over n
    left: Tensor  # (r + 1, n): spectra over n


def fits(A: Side, C: Side, product: str = "auto") -> bool:
    """Whether M is square, and its dtype, its scales and its length allow it."""
    n = A[2].shape[-1]
    if C[2].shape[-1] != n or A[2].dtype != torch.float32 or not is_fast_length(n):
        return False
    scales = [convolution_scales(side[0], product) for side in (A, C)]
    return all(P is not None and P.dtype == torch.float32 for P in scales)


def prepare(A: Side, C: Side) -> PairedRings:
    """Prepare M = sum_i K(A, g_i) K(C, h_i)^T of float32, where it `fits`."""
    n = A[2].shape[-1]
    P_A, left, P_C, right = generators(A, C, 1.0, -1.0)
    angle = torch.arange(n, dtype=torch.float64, device=left.device) * (math.pi / n)
    turn = torch.polar(torch.ones_like(angle), angle)
    spectra = (turn, conjugate(torch.fft.fft(right * turn)) / n, torch.fft.fft(left) / n)
    return PairedRings(P_A.float(), P_C.float(), *(t.to(torch.complex64) for t in spectra))


def serves(x: Tensor) -> bool:
    """Whether `matmul` by kernels takes this input: two vectors or more on a GPU, without a gradient."""
    if not x.is_cuda or x.dtype != torch.float32 or x.ndim != 2 or len(x) < 2:
        return False
    if torch.compiler.is_compiling() or unavailable() or (torch.is_grad_enabled() and x.requires_grad):
        return False
    try:
        return x.data_ptr() != 0
    except RuntimeError:  # of vmap: no storage of its own
        return False


def matmul(K: PairedRings, x: Tensor) -> Tensor:
    """M x for prepared M: (b, n) to (b, n). By kernels; `plain_matmul` is the same in torch."""
    b, n = x.shape
    r, pairs = len(K.right) - 1, (b + 1) // 2
    both = K.turn.new_empty(2, pairs, n)
    _launch("pair", both, [x.contiguous(), K.P_C, K.turn, both, b, n])
    U, S = torch.fft.fft(both).unbind(0)
    v = K.turn.new_empty(r + 1, pairs, n)
    _launch("spread", U, [U, K.right, v, r + 1, n])
    v = torch.fft.ifft(v, norm="forward")
    _launch("turn_back", U, [K.turn, v, r, n])
    Y = torch.empty_like(U)
    _launch("gather", U, [torch.fft.fft(v[:r]), S, K.left, Y, r, n])
    y = torch.fft.ifft(Y, norm="forward")
    out = torch.empty_like(x)
    _launch("part", U, [y, v[r], K.turn, K.P_A, out, b, n])
    return out


def plain_matmul(K: PairedRings, x: Tensor) -> Tensor:
    """What `matmul` does."""
    b, n = x.shape
    scaled = torch.nn.functional.pad(x * K.P_C, (0, 0, 0, b % 2)).view(-1, 2, n)
    s = torch.complex(scaled[:, 0], scaled[:, 1])
    U, S = torch.fft.fft(s * K.turn), torch.fft.fft(s)
    v = torch.fft.ifft(U * K.right.unsqueeze(1), norm="forward") * conjugate(K.turn)
    Y = (torch.fft.fft(v[:-1]) * K.left[:-1].unsqueeze(1)).sum(0) + S * K.left[-1]
    y = torch.fft.ifft(Y, norm="forward") + v[-1]
    return torch.stack((y.real, y.imag), 1).flatten(0, 1)[:b] * K.P_A


def _launch(name: str, like: Tensor, arguments: list[Any]) -> None:
    """One thread for each place of each pair of `like` (.., pairs, n)."""
    pairs, n = like.shape[-2:]
    nvrtc.launch(SOURCE, name, like.device, (-(-n // _THREADS), pairs, 1), _THREADS, arguments)
