"""A whole square LDR product on a CPU in one call of C, for inference.

torch's FFTs are quick across a large batch and slow on one vector, and the small steps around them cost as
much again. Where n is a power of two, this module does all of

    y = sum_i K(A, g_i) K(C, h_i)^T x

in one loop nest over the compiled FFT. `circulant_pair` turns the product into one of shifts Z_a and Z_b, for
any a and b with a b != 1 and two terms more. Here a = -1 and b = -1/2, because Z_{-1} belongs to the ring of
`kernels.cpu.fft`, which takes complex FFTs of length n / 2, and so does Z_{-1/2} after a scaling:

    K(Z_{-1/2}, v) = D K(Z_{-1}, D^{-1} v) D^{-1},     D = diag(2^{j/n}).

That is 2r + 4 FFTs of length n / 2 a vector. The scaling costs a bit of precision at most. The tests hold
it to the same oracle as every other product; `why_not` says where it applies.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...kernels.cpu import library, pair
from .._twin import in_memory, serves
from ..kept import KeptProduct
from .circulant_pair import generators
from .guard import Side, balanced

SMALLEST = 64


class CompiledPair(NamedTuple):
    """The constants of a product, in the dtype that it computes in; one matrix or a stack."""

    scalings: Tensor  # (5, n): P_C D, P_C, D^{-1}, P_A, P_A D^{-1}
    left: Tensor  # (r + 1, n): spectra of the left generators, real parts first
    right: Tensor  # (r + 1, n): those of the right ones


def why_not(A: Side, C: Side) -> str | None:
    """Why a layer with these operators cannot be prepared, or None."""
    n = A[2].shape[-1]
    if C[2].shape[-1] != n or n & (n - 1) or n < SMALLEST:
        return f"for square matrices whose size is a power of two from {SMALLEST}"
    if not serves(A[2], C[2]):
        return library.why_not() or "for CPUs, float32 and float64"
    return None


@torch.no_grad()
def prepare(A: Side, C: Side, dtype: torch.dtype) -> CompiledPair:
    """Prepare sum_i K(A, g_i) K(C, h_i)^T for products in a dtype, see `guard`."""
    n, half = A[2].shape[-1], A[2].shape[-1] // 2
    (P_A, P_C), (left, right) = generators(*balanced(A, C), -1.0, -0.5)
    D = 2.0 ** (torch.arange(n, dtype=torch.float64, device=P_A.device) / n)
    scalings = torch.stack((P_C * D, P_C, 1 / D, P_A / half, P_A / D / half))
    right = _spectra(right / D)
    right[:-1] /= half
    return CompiledPair(*(t.to(dtype) for t in (scalings, _spectra(left), right)))


def _spectra(v: Tensor) -> Tensor:
    """Of real vectors modulo X^n + 1, (.., n), real parts first."""
    low, high = v.unflatten(-1, (2, -1)).unbind(-2)
    angle = torch.arange(len(low[0]), dtype=v.dtype, device=v.device) * (torch.pi / v.shape[-1])
    found = torch.fft.fft(torch.complex(low, high) * torch.polar(torch.ones_like(angle), angle))
    return torch.cat((found.real, found.imag), -1)


def apply(K: CompiledPair, x: Tensor, *, transposed: bool = False) -> Tensor:
    """The product for prepared constants, or M^T x: (.., b, n) to (.., b, n), in the dtype of `x`.

    M^T takes the same constants: `kernels.cpu.pair`.
    """
    return pair.product(*K, in_memory(x.to(K.scalings.dtype)), transposed=transposed).to(x.dtype)


def kept(A: Side, C: Side, dtype: torch.dtype) -> KeptProduct:
    """The product for operators and vectors that are constants, differentiable in x."""
    K = prepare(A, C, dtype)
    return KeptProduct(lambda transposed: lambda x: apply(K, x, transposed=transposed))
