"""LDR-TD for many replicas on a GPU: Krylov matrices of a stack of tridiagonal rings.

The operators are S rings of length m, `bands` (S, m, 3), (A x)_i = lower_i x_{i-1} + diagonal_i x_i +
upper_i x_{i+1} with indices modulo m. A power A^q has 2q + 1 diagonals, so on a block of p rows it is a
dense (p, p + 2q) matrix that sees a window of the vector. By doubling,

    A^{2q} = A^q A^q    and    K_{2q} = [K_q, A^q K_q]      for q = 1, 2, .. p / 2,

and then, p columns at a time, K = [K_p, A^p K_p, A^{2p} K_p, ..]: some 100 batched operations for all
operators together, where a column at a time takes m of them. All of it is plain torch and reads no
value, so it can be captured and replayed. The tests hold it to `krylov_of_ring_reference`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

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
    m: int, size: int, halo: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Row numbers of all windows; for each row its places (m, w), flat; and 1 where there is one."""
    blocks = -(-m // size)
    first = torch.arange(blocks).unsqueeze(1) * size - halo
    index = ((first + torch.arange(size + 2 * halo)) % m).flatten()
    order = index.argsort(stable=True)
    counts = torch.bincount(index, minlength=m)
    slot = torch.arange(int(counts.max()))
    starts = counts.cumsum(0) - counts
    weights = slot < counts.unsqueeze(1)
    back = order[(starts.unsqueeze(1) + slot).clamp(max=len(order) - 1)]
    return index.to(device), back.flatten().to(device), weights.to(device, dtype)


def _windows(x: Tensor, size: int, halo: int) -> Tensor:
    """(S, m, c) to (S, blocks, size + 2 halo, c): blocks of rows with a halo, around the ring.

    Unrolling the ring to a line makes every window right, even one that is longer than the ring.
    """
    tables = _tables(x.shape[1], size, halo, x.dtype, x.device)
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
    yield q, _slanted(_windows(bands, p, 0))
    while q < p:
        # Rows -q .. p + q of A^q, over the columns -2q .. p + 2q that A^{2q} sees.
        wide = _slanted(_windows(bands, p, q))
        square = wide[..., q : q + p, q : p + 3 * q] @ wide
        bands = _straight(square).flatten(1, 2)[:, :m]
        q *= 2
        yield q, square


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
    r = V.shape[1]
    p = min(BLOCK, 1 << (k - 1).bit_length())
    X, power = V.mT, bands
    for q, power in _powers(bands, p):
        if q < p:
            X = torch.cat((X, _apply(power, X, q)), -1)
    tiles = [X]
    for _ in range(p, k, p):
        tiles.append(_apply(power, tiles[-1], p))
    last = k - (len(tiles) - 1) * p
    if last < p:
        tiles[-1] = pad(tiles[-1][..., : last * r], (0, (p - last) * r))
    return torch.stack(tiles, 1)


def _apply(power: Tensor, X: Tensor, q: int) -> Tensor:
    """A^q X for the blocks of A^q and columns X, (S, m, c)."""
    size = power.shape[-2]
    return (power @ _windows(X, size, q)).flatten(1, 2)[:, : X.shape[1]]


def square_krylov_product(bands: Tensor, V: Tensor, x: Tensor) -> Tensor:
    """sum_i K(A, g_i) K(C, h_i)^T x for R replicas of a square layer.

    Args:
        bands: the rings of all A, then of all C, shape (2R, n, 3).
        V: all G, then all H, shape (2R, r, n).
        x: shape (b, n) or (R, b, n).

    Returns:
        Shape (R, b, n).
    """
    n = V.shape[-1]
    KA, KC = krylov_tiles(bands, V, n).chunk(2)
    z = (x.unsqueeze(1) if x.ndim == 3 else x) @ KC  # (R, tiles, b, p r)
    return (z @ KA.mT).sum(1)
