"""Generators on the grid of int8, each rounding made up for by the entries that follow.

Rounded one by one, the errors of a forecaster's generators add up along diagonals, and a smooth series meets
their sum. So the right generators are rounded in order, and the entries behind each take up its error, in
the norm of forecasts (as GPTQ does for dense layers: Frantar et al. 2023). Then the left ones are fitted
again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .bilinear import Bilinear, Pair

LARGEST = 127


def rounded_generators(problem: Bilinear, G: Tensor, H: Tensor, sweeps: int = 5) -> Pair:
    """G (r, horizon) and H (r, past) near the given ones, all entries integers times a scale for each row.

    `problem` is that of the generators. Rounding again changes nothing.
    """
    found = []
    for _ in range(sweeps):
        g = problem.rows.analyse(G).conj()[:, : problem.rows.half].mT
        normal, target = problem.right_system(g)
        H = _compensated(normal, target, H)
        G = problem.rows.real_rows(problem.best_left(H).mT)
        found.append((_nearest(G), H))
    return min(found, key=lambda pair: problem.error(*pair))


def _nearest(V: Tensor) -> Tensor:
    scale = V.abs().amax(-1, keepdim=True) / LARGEST
    return (V / scale).round() * scale


def _compensated(normal: Tensor, target: Tensor, H: Tensor) -> Tensor:
    """Rows on their grids with little of (h - h*)^T normal (h - h*), h* the solution."""
    size = normal.diagonal().mean()
    damped = normal + 1e-9 * size * torch.eye(len(normal), dtype=normal.dtype)
    factor = torch.linalg.cholesky(damped)
    best = torch.cholesky_solve(target[:, None], factor)[:, 0].view(H.shape)
    scale, largest = best.abs().amax(-1, keepdim=True) / LARGEST, best.abs().argmax(-1)
    pinned = {row * H.shape[1] + int(at) for row, at in enumerate(largest)}  # they keep the scale
    grid = scale.expand(H.shape).flatten()
    # U^T U = normal^-1: row k of U says what the error of entry k asks of the others.
    U = torch.linalg.cholesky(torch.cholesky_inverse(factor), upper=True)
    U = U / U.diagonal()[:, None]
    h, start = best.flatten().clone(), best.flatten()
    for k in range(len(h)):
        wanted = start[k] if k in pinned else h[k]
        found = (wanted / grid[k]).round().clamp(-LARGEST, LARGEST) * grid[k]
        h[k + 1 :] -= (h[k] - found) * U[k, k + 1 :]
        h[k] = found
    return h.view(H.shape)
