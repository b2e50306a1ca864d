"""Single vectors on a CPU: a whole product of two Krylov matrices in one compiled call.

torch's FFTs are quick across a batch and slow on one vector (92 us for 8192 real numbers alone, 29 us
each in a batch of 8, on two ARM cores), and the small steps around them cost as much again. For powers of
two this module does all of

    y = sum_i K(A, g_i) K(C, h_i)^T x,      A = D_A Z_f D_A^{-1},  C = D_C Z_e D_C^{-1}

in one loop nest that numba compiles. Two ideas keep it short:

    right angle    weigh by w^j, w = exp(i pi / 2n): the n-cyclic convolution of complex numbers is then
                   modulo X^n - i and holds the low half of the linear convolution in its real part, the
                   high half in its imaginary part. No padding, and any corner f is one complex scaling,
                   since low + f high = Re((1 - i f) (low + i high)).
    no reordering  a decimation in frequency leaves its output in bit-reversed order, a decimation in time
                   takes it so: between them products are pointwise, whatever the order.

The tests hold it to the same oracle as every other product. `serves` says where it applies.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import stencil

LARGEST_BATCH = 4
LARGEST_RANK = 4  # beyond, torch's FFTs have the rank for a batch
SMALLEST = 64


class Single(NamedTuple):
    """The constants of a product, complex arrays."""

    dtype: torch.dtype
    scalings: Any  # (3, n): enter, P_C (1 + i e) w^j; between, w^j; leave, P_A (1 - i f) w^-j / n
    spectra: Any  # (2, r, n): conjugate ones of h / P_C, over n; those of g / P_A
    turns: Any  # (2, n): twiddles of all stages and their conjugates; those of half h from h on


def prepare(P_A: Tensor, f: Tensor, G: Tensor, P_C: Tensor, e: Tensor, H: Tensor) -> Single | None:
    """Prepare sum_i K(A, g_i) K(C, h_i)^T for scales P (n,), corners f and e of the rings, and (r, n) starts.

    None where it does not apply: not square, not a power of two, a high rank, not on a CPU, no numba.
    """
    n = G.shape[-1]
    if H.shape[-1] != n or n & (n - 1) or n < SMALLEST or G.shape[0] > LARGEST_RANK:
        return None
    if not stencil.serves(P_A, P_C):
        return None
    dtype = torch.promote_types(P_A.dtype, P_C.dtype)
    narrow = np.complex128 if dtype == torch.float64 else np.complex64
    p_A, g, p_C, h = (t.detach().double().numpy() for t in (P_A, G, P_C, H))
    w = np.exp(1j * np.pi / (2 * n) * np.arange(n))
    halves = [1 << i for i in range(n.bit_length() - 1)]
    turns = np.concatenate([np.ones(1), *(np.exp(-1j * np.pi / half * np.arange(half)) for half in halves)])
    left, right = g / p_A * w, h / p_C * w
    for row in (*left, *right):
        _kernels()[0](row, turns)
    enter, leave = p_C * (1 + 1j * e.item()) * w, p_A * (1 - 1j * f.item()) * w.conj() / n
    constants = (enter, w, leave), (right.conj() / n, left), (turns, turns.conj())
    return Single(dtype, *(np.stack(c).astype(narrow) for c in constants))


def serves(x: Tensor) -> bool:
    """Whether `matmul` takes this input: few plain vectors that no gradient is wanted of."""
    if x.shape[0] > LARGEST_BATCH or (torch.is_grad_enabled() and x.requires_grad):
        return False
    if torch.compiler.is_compiling() or x.device.type != "cpu":
        return False
    try:
        x.data_ptr()
    except RuntimeError:  # vmap's tensors have no storage of their own
        return False
    return True


def matmul(K: Single, x: Tensor) -> Tensor:
    """The product for prepared constants: (b, n) to (b, n), in the dtype of `x`."""
    dtype, scalings, spectra, turns = K
    source = x if x.dtype is dtype else x.to(dtype)
    y = np.empty(x.shape, scalings.real.dtype)
    _kernels()[1](source.detach().numpy(), y, scalings, spectra, turns)
    result = torch.from_numpy(y)
    return result if x.dtype is dtype else result.to(x.dtype)


@cache
def _kernels() -> tuple[Any, Any]:
    import numba

    # Every sum here is of two or three terms: contraction to fused multiply-adds changes only rounding.
    compiled = numba.njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
    forward, backward = compiled(_forward), compiled(_backward)

    def product(x, y, scalings, spectra, turns):  # type: ignore[no-untyped-def]
        enter, weight, leave = scalings
        right, left = spectra
        n, r = x.shape[1], right.shape[0]
        u, z, total = np.empty((3, n), scalings.dtype)
        for b in range(x.shape[0]):
            for j in range(n):
                u[j] = x[b, j] * enter[j]
                total[j] = 0
            forward(u, turns[0])
            for i in range(r):
                for j in range(n):
                    z[j] = u[j] * right[i, j]
                backward(z, turns[1])
                for j in range(n):
                    real = z[j].real * weight[j].real + z[j].imag * weight[j].imag
                    z[j] = real * weight[j]
                forward(z, turns[0])
                for j in range(n):
                    total[j] += z[j] * left[i, j]
            backward(total, turns[1])
            for j in range(n):
                y[b, j] = total[j].real * leave[j].real - total[j].imag * leave[j].imag

    return forward, compiled(product)


def _forward(x: Any, turns: Any) -> None:
    """The transform, in place, natural order to bit-reversed: two stages at a time."""
    n = x.shape[0]
    half = n // 2
    while half >= 2:
        q = half // 2
        w1, w2, w3 = turns[half : half + q], turns[q : 2 * q], turns[half + q : 2 * half]
        for start in range(0, n, 2 * half):
            a, b = x[start : start + q], x[start + q : start + 2 * q]
            c, d = x[start + 2 * q : start + 3 * q], x[start + 3 * q : start + 4 * q]
            for j in range(q):
                e, f = a[j] + c[j], b[j] + d[j]
                g, h = (a[j] - c[j]) * w1[j], (b[j] - d[j]) * w3[j]
                a[j] = e + f
                b[j] = (e - f) * w2[j]
                c[j] = g + h
                d[j] = (g - h) * w2[j]
        half //= 4
    if half == 1:
        for start in range(0, n, 2):
            e, f = x[start], x[start + 1]
            x[start] = e + f
            x[start + 1] = e - f


def _backward(x: Any, turns: Any) -> None:
    """n times the inverse, in place, bit-reversed order to natural; `turns` are the conjugates."""
    n = x.shape[0]
    half, bits = 2, 0
    while 1 << bits < n:
        bits += 1
    if bits % 2:
        for start in range(0, n, 2):
            e, f = x[start], x[start + 1]
            x[start] = e + f
            x[start + 1] = e - f
        half = 4
    while half < n:
        q = half // 2
        w1, w2, w3 = turns[half : half + q], turns[q : 2 * q], turns[half + q : 2 * half]
        for start in range(0, n, 2 * half):
            a, b = x[start : start + q], x[start + q : start + 2 * q]
            c, d = x[start + 2 * q : start + 3 * q], x[start + 3 * q : start + 4 * q]
            for j in range(q):
                b_, d_ = b[j] * w2[j], d[j] * w2[j]
                e, f = a[j] + b_, a[j] - b_
                g, h = (c[j] + d_) * w1[j], (c[j] - d_) * w3[j]
                a[j] = e + g
                b[j] = f + h
                c[j] = e - g
                d[j] = f - h
        half *= 4
