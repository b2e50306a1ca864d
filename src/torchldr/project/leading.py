"""The leading singular triplets of a matrix, by iteration where it is large."""

from __future__ import annotations

import torch
from torch import Tensor

_SMALL = 320  # up to here a full SVD takes some hundredths of a second
_EXTRA = 8
_ROUNDS = 8


def leading(D: Tensor, rank: int, near: Tensor | None = None, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """U (m, r), S (r,), V (r, n) with D nearly U diag(S) V at its first r singular values.

    Args:
        D: shape (m, n).
        rank: how many triplets r, at most min(m, n).
        near: right vectors (p, n) of a similar matrix to start from.
        seed: of the start where there is none.
    """
    m, n = D.shape
    if min(m, n) <= max(_SMALL, 4 * rank):
        U, S, V = torch.linalg.svd(D, full_matrices=False)
        return U[:, :rank], S[:rank], V[:rank]
    generator = torch.Generator().manual_seed(seed)
    Q = torch.randn(n, rank + _EXTRA, dtype=D.dtype, generator=generator)
    if near is not None:
        Q[:, : near.shape[0]] = near.mT + 1e-3 * near.abs().max() * Q[:, : near.shape[0]]
    for _ in range(_ROUNDS):
        Q, _ = torch.linalg.qr(D.mT @ torch.linalg.qr(D @ Q)[0])
    P, _ = torch.linalg.qr(D @ Q)
    U, S, V = torch.linalg.svd(P.mT @ D, full_matrices=False)
    return (P @ U)[:, :rank], S[:rank], V[:rank]


def halves(U: Tensor, S: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """G (r, m) and H (r, n) with G^T H = U diag(S) V, the singular values shared evenly."""
    root = S.sqrt()
    return (U * root).mT.contiguous(), root.unsqueeze(1) * V
