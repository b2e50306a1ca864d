"""A whole square LDR product on a CPU in one compiled call, for inference.

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

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...kernels.cpu import compiled
from ...kernels.cpu.arrays import as_array
from ...kernels.cpu.compiled import Loops, numbers, wide
from ...kernels.cpu.threads import in_parts
from ..kept import KeptProduct
from ..reference import krylov_of_side_reference
from .circulant_pair import generators
from .guard import Side, sample_side

SMALLEST = 64


class CompiledPair(NamedTuple):
    """The constants of a product, as arrays."""

    dtype: torch.dtype
    scalings: Any  # (5, n): P_C D, P_C, D^{-1}, P_A, P_A D^{-1}
    right: Any  # (r + 1, n): spectra of the right generators, over n / 2
    left: Any  # (r + 1, n): those of the left ones; the last over n / 2 too
    tables: Any  # of the FFT
    product: Any  # the compiled loop nest


def why_not(A: Side, C: Side) -> str | None:
    """Why a layer with these operators cannot be prepared, or None."""
    n = A[2].shape[-1]
    if C[2].shape[-1] != n or n & (n - 1) or n < SMALLEST:
        return f"for square matrices whose size is a power of two from {SMALLEST}"
    if not compiled.serves(A[2], C[2]):
        return compiled.why_not() or "for CPUs"
    return LOOPS.why_not(A[2].dtype)


@torch.no_grad()
def prepare(A: Side, C: Side, dtype: torch.dtype) -> CompiledPair:
    """Prepare sum_i K(A, g_i) K(C, h_i)^T for products in a dtype, see `guard`."""
    from ...kernels.cpu import convolution as compiled_kernels
    from ...kernels.cpu import fft as compiled_fft  # they import numba

    r, n = A[2].shape
    name, half = str(dtype).removeprefix("torch."), n // 2
    (P_A, P_C), (left, right) = (t.numpy() for t in generators(A, C, -1.0, -0.5))
    D = 2.0 ** (np.arange(n) / n)
    scalings = np.stack((P_C * D, P_C, 1 / D, P_A / half, P_A / D / half)).astype(name)
    right = compiled_fft.spectra(right / D, half, name)
    right[:r] /= half
    left = compiled_fft.spectra(left, half, name)
    tables = compiled_fft.tables(half, name)
    return CompiledPair(dtype, scalings, right, left, tables, compiled_kernels.circulant_pair)


def matmul(K: CompiledPair, x: Tensor) -> Tensor:
    """The product for prepared constants: (b, n) to (b, n), in the dtype of `x`."""
    source = as_array((x if x.dtype is K.dtype else x.to(K.dtype)).contiguous())
    y = np.empty(source.shape, source.dtype)

    def rows(start: int, stop: int) -> None:
        K.product(source[start:stop], y[start:stop], K.scalings, K.right, K.left, *K.tables)

    in_parts(len(source), K.left.size, rows)
    result = torch.from_numpy(y)
    return result if x.dtype is K.dtype else result.to(x.dtype)


def kept(A: Side, C: Side, dtype: torch.dtype) -> KeptProduct:
    """The product for operators and vectors that are constants, differentiable in x: M^T swaps the sides."""
    return KeptProduct(
        lambda transposed: partial(matmul, prepare(*((C, A) if transposed else (A, C)), dtype))
    )


def _check(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    side, x = sample_side(SMALLEST, dtype), numbers(2, SMALLEST, dtype=dtype)
    K = krylov_of_side_reference(map(wide, side), SMALLEST)
    yield matmul(prepare(side, side, dtype), x), wide(x) @ (K @ K.mT).sum(0)


LOOPS = Loops("the product of single vectors", _check)
