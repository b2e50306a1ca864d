"""Linear algebra: leading singular triplets, normal equations with a little ridge, conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_SMALL = 320  # up to here a full SVD takes some hundredths of a second
_EXTRA = 8
_ROUNDS = 8
_RIDGE = 1e-14  # relative ridge: makes the solution unique if parameters have no effect
_TINY = 1e-280  # keeps a ridge above subnormal numbers, which some libraries treat as zero
_CLOSE = 1e-12  # the relative residual at which conjugate gradients stop
_RANGE = 1e-12  # of the largest eigenvalue; smaller directions count as absent from the inputs


def leading(D: Tensor, rank: int, near: Tensor | None = None, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """U (m, r), S (r,), V (r, n) with D nearly U diag(S) V at its first r singular values, r = `rank`.

    It starts from right vectors `near` (p, n) of a similar matrix, or from random ones.
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


def ridged(normal: Tensor) -> Tensor:
    """Normal matrices (..., p, p) with a small multiple of their mean diagonal added to it."""
    ridge = (_RIDGE * normal.diagonal(dim1=-2, dim2=-1).real.mean(-1)).clamp(min=_TINY)
    return normal + ridge[..., None, None] * torch.eye(normal.shape[-1], dtype=normal.dtype)


def balanced(G: Tensor, H: Tensor) -> tuple[Tensor, Tensor]:
    """The same terms g_i^T h_i with factors of equal norms, so that neither grows without bound."""
    g, h = G.norm(dim=1, keepdim=True), H.norm(dim=1, keepdim=True)
    ratio = torch.where(g * h > 0, (h / g).sqrt(), 1.0)
    return G * ratio, H / ratio


def inverse_root(moments: Tensor) -> Tensor:
    """P with P P^T the inverse of a positive semidefinite matrix on its range."""
    values, vectors = torch.linalg.eigh(moments)
    keep = values > _RANGE * values[-1].clamp(min=_TINY)
    return vectors * torch.where(keep, values.clamp(min=_TINY).rsqrt(), 0.0)


def conjugate_gradients(
    apply: Callable[[Tensor], Tensor],
    right: Tensor,
    start: Tensor,
    precondition: Callable[[Tensor], Tensor],
    steps: int,
) -> Tensor:
    """Solve N x = right for a positive semidefinite N given by its products, from `start`.

    Every step lowers x^T N x / 2 - right^T x, so stopping early never makes the start worse.
    """
    x = start
    r = right - apply(x)
    z = precondition(r)
    p, rho = z, _dot(r, z)
    first = _dot(right, precondition(right))
    for _ in range(steps):
        if rho <= _CLOSE**2 * first:
            break
        q = apply(p)
        curvature = _dot(p, q)
        if curvature <= 0:
            break
        x = x + (rho / curvature) * p
        r = r - (rho / curvature) * q
        z = precondition(r)
        rho, previous = _dot(r, z), rho
        p = z + (rho / previous) * p
    return x


def _dot(x: Tensor, y: Tensor) -> float:
    return (x.conj() * y).sum().real.item()
