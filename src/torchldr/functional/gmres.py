"""Restarted GMRES for many right-hand sides at once, by products alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def gmres(
    product: Callable[[Tensor], Tensor], b: Tensor, *, tol: float = 1e-12, restart: int = 64, cycles: int = 20
) -> tuple[Tensor, Tensor]:
    """Solve M x = b for every row of b, given only products with M.

    Each cycle minimises |b - M x| over a Krylov space of `restart` dimensions, one for every right-hand
    side; the basis is kept orthogonal by Gram-Schmidt done twice. The rows go through each product
    together, until all are done or a whole cycle gains less than a tenth.

    Args:
        product: (p, n) to (p, n), linear.
        b: right-hand sides, shape (p, n), real or complex.
        tol: target of |b - M x| / |b|.
        restart: dimensions of a cycle; at most n are used.
        cycles: the most cycles.

    Returns:
        The solutions (p, n), and |b - M x| / |b| of each, (p,), as measured in the end.

    Cost: restart products a cycle, and 4 restart^2 n operations and restart n memory a row.
    """
    n = b.shape[-1]
    restart = min(restart, n)
    size = torch.linalg.vector_norm(b, dim=-1)
    size = torch.where(size == 0, 1, size)
    x, residual = torch.zeros_like(b), b
    error = torch.linalg.vector_norm(residual, dim=-1) / size
    for _ in range(cycles):
        if bool((error <= tol).all()):
            break
        trial = x + _cycle(product, residual, restart, tol * size)
        left = b - product(trial)
        after = torch.linalg.vector_norm(left, dim=-1) / size
        better = (after < error).unsqueeze(-1)
        gained = bool((after < 0.9 * error).any())
        x, residual = torch.where(better, trial, x), torch.where(better, left, residual)
        error = torch.minimum(error, after)
        if not gained:
            break
    return x, error


def _cycle(product: Callable[[Tensor], Tensor], residual: Tensor, restart: int, enough: Tensor) -> Tensor:
    """The step that a Krylov space of `restart` dimensions allows, shape (p, n)."""
    p = residual.shape[0]
    start = torch.linalg.vector_norm(residual, dim=-1)
    basis = [_unit(residual, start)]
    H = residual.new_zeros(p, restart + 1, restart)  # M V = V H
    done = 0
    for j in range(restart):
        V = torch.stack(basis, 1)
        w = product(basis[-1])
        for _ in range(2):
            along = (V.conj() @ w.unsqueeze(-1)).squeeze(-1)
            H[:, : j + 1, j] += along
            w = w - (along.unsqueeze(1) @ V).squeeze(1)
        length = torch.linalg.vector_norm(w, dim=-1)
        H[:, j + 1, j] = length.to(H.dtype)
        basis.append(_unit(w, length))
        done = j + 1
        # Looking costs a small least-squares problem; the space only grows, so now and then is enough.
        if done % 8 == 0 and bool((_least_squares(H, start, done)[1] <= 0.5 * enough).all()):
            break
    y, _ = _least_squares(H, start, done)
    return (y.unsqueeze(1) @ torch.stack(basis[:done], 1)).squeeze(1)


def _least_squares(H: Tensor, start: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The y (p, k) that minimises |start e_1 - H y|, and that minimum (p,).

    By the pseudo-inverse: where a space ended early its columns are zero, and y there with them.
    """
    target = H.new_zeros(H.shape[0], k + 1, 1)
    target[:, 0, 0] = start.to(H.dtype)
    top = H[:, : k + 1, :k]
    y = torch.linalg.pinv(top, rtol=1e-15) @ target
    return y.squeeze(-1), torch.linalg.vector_norm((target - top @ y).squeeze(-1), dim=-1)


def _unit(v: Tensor, length: Tensor) -> Tensor:
    """v / length, and 0 where that is a space's end."""
    tiny = length <= torch.finfo(length.dtype).tiny
    return torch.where(tiny.unsqueeze(-1), 0, v / torch.where(tiny, 1, length).unsqueeze(-1))
