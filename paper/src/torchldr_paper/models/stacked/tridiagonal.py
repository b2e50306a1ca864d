"""LDR-TD for many replicas on a GPU: Krylov matrices of a stack of tridiagonal rings.

The operators are S rings of length m, (A x)_i = lower_i x_{i-1} + diagonal_i x_i + upper_i x_{i+1} with
indices modulo m. Where the kernels of `functional.cuda` serve, one launch runs all stencils, a block a
vector. Elsewhere, in plain torch: a power A^q has 2q + 1 diagonals, so on a block of p rows it is a
dense (p, p + 2q) matrix that sees a window of the vector. By doubling,

    A^{2q} = A^q A^q    and    K_{2q} = [K_q, A^q K_q]      for q = 1, 2, .. p / 2,

and then, p columns at a time, K = [K_p, A^p K_p, A^{2p} K_p, ..]: some 100 batched operations for all
operators together, where a column at a time takes m of them. Both read no value, so they can be captured
and replayed. The tests hold them to `krylov_of_ring_reference`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchldr.kernels import cuda

BLOCK = 64  # p, at most


class _Windows(torch.autograd.Function):
    """Rows of x by number, (S, m, c) to (S, len(index), c); its backward is a gather and a sum.

    Indexing would add up gradients by sorting or by atomic additions; here `back` says where each row
    went, at most w places, so the backward is deterministic and a few kernels.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, back: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(back, weights)
        return x.index_select(1, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        back, weights = ctx.saved_tensors
        m, w = weights.shape
        gathered = grad.index_select(1, back).unflatten(1, (m, w))
        return (gathered * weights.unsqueeze(-1)).sum(2), None, None, None


@lru_cache(maxsize=256)
def _tables(
    m: int, rows: int, size: int, halo: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Row numbers of all windows; for each of the rows its places, flat; and 1 where there is one."""
    blocks = -(-m // size)
    first = torch.arange(blocks).unsqueeze(1) * size - halo
    index = ((first + torch.arange(size + 2 * halo)) % m).flatten()
    order = index.argsort(stable=True)
    counts = torch.bincount(index, minlength=rows)
    slot = torch.arange(int(counts.max()))
    starts = counts.cumsum(0) - counts
    weights = slot < counts.unsqueeze(1)
    back = order[(starts.unsqueeze(1) + slot).clamp(max=len(order) - 1)]
    return index.to(device), back.flatten().to(device), weights.to(device, dtype)


def _windows(x: Tensor, m: int, size: int, halo: int) -> Tensor:
    """(S, rows, c) to (S, blocks, size + 2 halo, c): blocks of rows with a halo, around a ring of m.

    Unrolling the ring to a line makes every window right, even one that is longer than the ring, and
    the rows behind the first m, which fill the last block, repeat the first ones.
    """
    tables = _tables(m, x.shape[1], size, halo, x.dtype, x.device)
    return _Windows.apply(x, *tables).unflatten(1, (-1, size + 2 * halo))


def _slanted(rows: Tensor) -> Tensor:
    """(.., a, w) to (.., a, a + w - 1), row i moved right by i places: diagonals to a banded matrix."""
    a, w = rows.shape[-2:]
    flat = pad(rows, (0, a)).flatten(-2)
    return flat[..., : a * (a + w - 1)].unflatten(-1, (a, a + w - 1))


def _straight(banded: Tensor) -> Tensor:
    """The inverse of `_slanted`: (.., a, a + w - 1) to (.., a, w)."""
    a, b = banded.shape[-2:]
    flat = pad(banded.flatten(-2), (0, a))
    return flat.unflatten(-1, (a, b + 1))[..., : b - a + 1]


def _powers(bands: Tensor, p: int) -> Iterator[tuple[int, Tensor]]:
    """(q, A^q as blocks (S, blocks, p, p + 2q)) for q = 1, 2, 4, .. p."""
    m, q = bands.shape[1], 1
    power = _slanted(_windows(bands, m, p, 0))
    yield q, power
    while q < p:
        # A^q A^q: the left one on rows 0 .. p, the right one on all rows -q .. p + q that it sees.
        power = power @ _slanted(_windows(bands, m, p, q))
        bands = _straight(power).flatten(1, 2)
        q *= 2
        yield q, power


def krylov_tiles(bands: Tensor, V: Tensor, k: int) -> Tensor:
    """The Krylov matrices K_k(A, v_i) of stacked rings, in tiles of p columns.

    Args:
        bands: the rings, shape (S, m, 3).
        V: start vectors, shape (S, r, m).
        k: how many columns.

    Returns:
        Shape (S, tiles, m, p r), tiles = ceil(k / p): [s, t, :, j r + i] is column t p + j of
        K(A_s, v_i). Columns from k on are zero.

    The same, slowly: `krylov_of_ring_reference(*bands[s].T, V[s, i], k)`.
    """
    r, m = V.shape[1:]
    p = min(BLOCK, 1 << (k - 1).bit_length())
    X = pad(V.mT, (0, 0, 0, -m % p))
    power = bands
    for q, power in _powers(bands, p):
        if q < p:
            X = torch.cat((X, _apply(power, X, m, q)), -1)
    tiles = [X]
    for _ in range(p, k, p):
        tiles.append(_apply(power, tiles[-1], m, p))
    last = k - (len(tiles) - 1) * p
    if last < p:
        tiles[-1] = pad(tiles[-1][..., : last * r], (0, (p - last) * r))
    return torch.stack(tiles, 1)[:, :, :m]


def _apply(power: Tensor, X: Tensor, m: int, q: int) -> Tensor:
    """A^q X for the blocks of A^q and columns X, (S, rows, c)."""
    return (power @ _windows(X, m, power.shape[-2], q)).flatten(1, 2)


class _Kernel(torch.autograd.Function):
    """All columns by one kernel, (S, m) thrice and (S, r, m) to (S, r, k, m), and their adjoint."""

    @staticmethod
    def forward(ctx: Any, lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, k: int) -> Tensor:
        K = cuda.krylov_columns(lower, diagonal, upper, V, k)
        ctx.save_for_backward(lower, diagonal, upper, K)
        return K

    @staticmethod
    def backward(ctx: Any, dK: Tensor) -> tuple[Tensor | None, ...]:
        lower, diagonal, upper, K = ctx.saved_tensors
        return *cuda.krylov_adjoint(lower, diagonal, upper, K, dK), None


def square_krylov_product(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, x: Tensor) -> Tensor:
    """sum_i K(A, g_i) K(C, h_i)^T x for R replicas of a square layer.

    Args:
        lower, diagonal, upper: the rings of all A, then of all C, shape (2R, n) each.
        V: all G, then all H, shape (2R, r, n).
        x: shape (b, n) or (R, b, n).

    Returns:
        Shape (R, b, n).
    """
    n = V.shape[-1]
    if cuda.serves(n, lower, diagonal, upper, V):
        KA, KC = _Kernel.apply(lower, diagonal, upper, V, n).flatten(1, 2).chunk(2)
        return (x @ KC.mT) @ KA
    KA, KC = krylov_tiles(torch.stack((lower, diagonal, upper), -1), V, n).chunk(2)
    z = (x.unsqueeze(1) if x.ndim == 3 else x) @ KC  # (R, tiles, b, p r)
    return (z @ KA.mT).sum(1)
