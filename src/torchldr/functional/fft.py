"""Lengths that FFTs like, and contractions of spectra over the rank.

FFT libraries are quick at products of small primes and several times slower at a large prime
(batch of 50 on a CPU: 882 us at 1021, 129 us at 1024), so every product here either has such a
length by nature or is padded to one. Lengths are even: of an odd length a GPU's library transforms two real
vectors as one complex vector, so that a NaN in one spoils the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import cuda

# Odd products of 3, 5 and 7 below 64: times a power of two they leave no gap wider than an eighth.
_ODD = (1, 3, 5, 7, 9, 15, 21, 25, 27, 35, 45, 49, 63)


def _least(n: int) -> int:
    return min(odd << max(1, (-(-n // odd) - 1).bit_length()) for odd in _ODD)


_LEAST = tuple(map(_least, range(129)))  # the same for all larger ones, times a power of two


def fast_length(n: int) -> int:
    """An even product of 2, 3, 5 and 7 that is at least `n` and, from 8 on, at most an eighth longer.

    >>> fast_length(1021), fast_length(1024), fast_length(2047)
    (1024, 1024, 2048)
    """
    shift = max(0, (n - 1).bit_length() - 7)
    return _LEAST[-(-n >> shift)] << shift


def is_fast_length(n: int) -> bool:
    """Whether `n` is an even product of 2, 3, 5 and 7.

    >>> is_fast_length(784), is_fast_length(1021), is_fast_length(225)
    (True, False, False)
    """
    return n % 2 == 0 and is_smooth(n)


def is_smooth(n: int) -> bool:
    """Whether `n` is a product of 2, 3, 5 and 7."""
    for prime in (2, 3, 5, 7):
        while n % prime == 0:
            n //= prime
    return n == 1


def leading(y: Tensor, m: int) -> Tensor:
    """The first m entries of the last axis, contiguous, in memory of their own: a view would keep y."""
    if y.shape[-1] == m and y.is_contiguous():
        return y
    return y[..., :m].clone(memory_format=torch.contiguous_format)


def conjugate(z: Tensor) -> Tensor:
    """The conjugate, made now: for the smaller operand of a product.

    The lazy `z.conj()` would be copied by the product all the same, and in the first call of a compiled
    function torch 2.13 forgets it; `torch.conj_physical` has no batching rule.
    """
    return torch.complex(z.real, -z.imag)


def contract_rank(a: Tensor, b: Tensor) -> Tensor:
    """sum_i a[..., i, f] b[i, f] over the rank i, for spectra.

    Args:
        a: shape (..., r, f).
        b: shape (r, f).

    Returns:
        Shape (..., f). Complex matrix products and einsum are slower than this on a CPU.

    The same, slowly: `torch.einsum("...if,if->...f", a, b)`.
    """
    if b.shape[0] == 1:
        return a[..., 0, :] * b[0]
    if torch.is_grad_enabled() or not cuda.contracts(a):
        return (a * b).sum(-2)
    return cuda.contract(a.contiguous(), b.contiguous())
