"""Solving (B_c + ridge I) x = b: Cholesky where the past is short, conjugate gradients by FFTs beyond.

Centring makes B_c singular in one direction n, along which windows do not move: solutions have no part of
it, and the ridge may be 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from ..linalg import solve
from ..matrices.toeplitz_like.rules import of_displacement
from .gram import Gram, dense_gram, null_vector, stein
from .moments import Moments
from .roots import Roots

DENSE_UP_TO = 2048  # past values: a Cholesky factor of 32 MB, as quick as conjugate gradients
ITERATIONS, TOLERANCE = 300, 1e-12

Solve = Callable[[Tensor], Tensor]


def without(null: Tensor | None, x: Tensor) -> Tensor:
    """x (..., n) without its part along the null vector."""
    return x if null is None else x - (x @ null)[..., None] * null


def by_cholesky(of: Moments, ridge: Tensor) -> Solve:
    """Solves for rows (b, p, L) with the dense matrix. ValueError where that is singular."""
    L = of.past
    K = dense_gram(of, L)
    size = K.diagonal(dim1=-2, dim2=-1).mean(-1)
    K.diagonal(dim1=-2, dim2=-1).add_(ridge[:, None])
    null = null_vector(of.center, L)
    if null is not None:
        K += (size[:, None, None] + ridge[:, None, None]) * torch.outer(null, null)
    factor, failed = torch.linalg.cholesky_ex(K)
    if bool(failed.any()):
        raise ValueError(
            "LinearForecaster: the windows do not determine a forecaster with ridge="
            f"{float(ridge[failed > 0][0]):.3g}; take a larger ridge, a shorter past or more data."
        )
    return lambda b: without(null, torch.cholesky_solve(without(null, b).mT, factor).mT)


def by_conjugate_gradients(of: Moments, ridge: Tensor) -> tuple[Solve, list[bool]]:
    """Solves for rows (b, p, L) by FFTs; the list is told whether each call converged."""
    L = of.past
    gram, null, shift = Gram(of, L), null_vector(of.center, L), ridge[:, None, None]
    eigenvalues = gram.diagonal(Roots(L, 1.0))[:, None, : L // 2 + 1]
    inverse = 1 / (eigenvalues.clamp(min=0) + shift)
    converged: list[bool] = []

    def precondition(r: Tensor) -> Tensor:
        return without(null, torch.fft.irfft(torch.fft.rfft(r) * inverse, L))

    def solve_rows(b: Tensor) -> Tensor:
        r = without(null, b)
        # Rows that are all null vector leave rounding errors, which have no solution.
        r = r * (r.norm(dim=-1, keepdim=True) > 1e-12 * b.norm(dim=-1, keepdim=True))
        x, y = torch.zeros_like(r), precondition(r)
        p, rho = y, (r * y).sum(-1, keepdim=True)
        goal = TOLERANCE**2 * rho
        for _ in range(ITERATIONS):
            q = without(null, gram(p) + shift * p)
            step = rho / (p * q).sum(-1, keepdim=True)
            step = torch.where(rho > goal, step, 0)
            x, r = x + step * p, r - step * q
            y = precondition(r)
            rho, before = (r * y).sum(-1, keepdim=True), rho
            if bool((rho <= goal).all()):
                break
            p = y + torch.where(before > 0, rho / before, 0) * p
        converged.append(bool((rho <= goal).all()))
        return x

    return solve_rows, converged


def by_elimination(of: Moments, ridge: Tensor) -> Solve:
    """Solves for rows (1, p, L) by Gaussian elimination on the generators of the matrix: O(L^2)."""
    null = null_vector(of.center, of.past)
    G, H = (part[0] for part in stein(of, ridge, 1, -1))
    if null is not None:
        size = float(of.scale()[0] + ridge[0])
        G, H = (torch.cat(parts) for parts in zip((G, H), _of_null(size * null, null), strict=True))
    matrix = of_displacement(G, H)

    def solve_rows(b: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the forecaster measures what it needs
            return without(null, solve(matrix, without(null, b[0]).mT).mT[None])

    return solve_rows


def _of_null(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Generators of u v^T - Z_1 u (Z_-1 v)^T."""
    moved = torch.cat((-v[-1:], v[:-1]))
    return torch.stack((u, -u.roll(1))), torch.stack((v, moved))
