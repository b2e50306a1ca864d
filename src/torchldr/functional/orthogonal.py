"""Fast orthogonal transforms: Hadamard and cosine.

    Hadamard    H_{2p} = [[H_p, H_p], [H_p, -H_p]] / sqrt(2): products of small dense factors
    cosine      DCT-II, C[k, j] = c_k cos(pi k (2j + 1) / 2n), c_0 = sqrt(1/n), c_k = sqrt(2/n):
                one FFT of length n after a reordering (Makhoul 1980)

Both are orthogonal, H is symmetric, and the inverse of each is its transpose. The tests hold them to
their matrices, `hadamard_reference` and `cosine_reference`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .constants import kept

LARGEST_KEPT = 1024  # size of a transform's matrix that is kept between calls: 4 MiB in float32
_RADIX = 32  # one dense factor: large enough for a matrix product, small enough for O(n log n)


def hadamard_reference(
    p: int, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu"
) -> Tensor:
    """The orthonormal Hadamard matrix of a power of two, shape (p, p)."""
    H = torch.ones(1, 1, dtype=dtype, device=device)
    while H.shape[0] < p:
        H = torch.cat((torch.cat((H, H), 1), torch.cat((H, -H), 1))) / math.sqrt(2)
    return H


def hadamard_transform(x: Tensor) -> Tensor:
    """The orthonormal Hadamard transform along the last axis, whose length is a power of two.

    H_p is a Kronecker product of factors of at most 32, so the transform is a few small matrix
    products. The same, slowly: `x @ hadamard_reference(p)`.
    """
    p = x.shape[-1]
    y, done = x, 1
    while done < p:
        radix = min(_RADIX, p // done)
        H = hadamard_matrix(radix, x.dtype, x.device)
        y = y.flatten(x.ndim - 1).unflatten(-1, (p // (radix * done), radix, done))
        y = (H @ y) if done > 1 else (y.squeeze(-1) @ H)
        done *= radix
    return y.flatten(x.ndim - 1)


def cosine_reference(
    n: int, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu"
) -> Tensor:
    """The orthonormal DCT-II matrix, shape (n, n)."""
    k = torch.arange(n, device=device)
    turns = k.unsqueeze(1) * (2 * k + 1) % (4 * n)  # reduced as integers: exact for every n
    C = torch.cos(turns.to(dtype) * (math.pi / (2 * n))) * math.sqrt(2 / n)
    return torch.cat((C[:1] / math.sqrt(2), C[1:]))


hadamard_matrix, cosine_matrix = kept(16)(hadamard_reference), kept(4)(cosine_reference)


def _quarter_turns(n: int, like: Tensor) -> Tensor:
    """c_k exp(-i pi k / 2n)."""
    angle = torch.arange(n, dtype=torch.float64, device=like.device) * (-math.pi / (2 * n))
    size = math.sqrt(2 / n) * (1 - (1 - math.sqrt(0.5)) * (angle == 0).to(angle))
    return torch.polar(size, angle).to(torch.promote_types(like.dtype, torch.complex64))


def _fft(x: Tensor) -> Tensor:
    """The FFT of real vectors, each by itself: see `fft` on odd lengths."""
    if x.is_cuda and x.shape[-1] % 2:
        x = torch.complex(x, torch.zeros_like(x))
    return torch.fft.fft(x)


def cosine_transform(x: Tensor) -> Tensor:
    """The orthonormal DCT-II along the last axis. The same, slowly: `x @ cosine_reference(n).T`."""
    n = x.shape[-1]
    folded = torch.cat((x[..., 0::2], x[..., 1::2].flip(-1)), -1)
    return (_fft(folded) * _quarter_turns(n, x)).real


def inverse_cosine_transform(x: Tensor) -> Tensor:
    """The inverse, and transpose, of `cosine_transform`. The same, slowly: `x @ cosine_reference(n)`."""
    n = x.shape[-1]
    folded = torch.fft.fft(x * _quarter_turns(n, x)).real
    half = (n + 1) // 2
    even, odd = folded[..., :half], folded[..., half:].flip(-1)
    woven = torch.stack((even, torch.nn.functional.pad(odd, (0, half - odd.shape[-1]))), -1)
    return woven.flatten(-2)[..., :n]
