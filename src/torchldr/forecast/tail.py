"""The last part of the series, held out: it chooses the ridge and gives intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .fitting import fit, matrix_of
from .gram import dense_gram, null_vector
from .moments import Moments
from .solvers import DENSE_UP_TO

WINDOWS = 256  # of the tail, evenly spread, on which errors are measured
RIDGES = tuple(10.0**k for k in range(0, -7, -1))  # of the mean square of a centred value
LEVELS = 201  # quantiles of the residuals that are kept


def centre_of(x: Tensor, center: str | None) -> Tensor:
    """The centre of windows (..., past), (..., 1)."""
    if center is None:
        return torch.zeros_like(x[..., :1])
    return x[..., -1:] if center == "last" else x.mean(-1, keepdim=True)


def windows(parts: Sequence[Tensor], window: int) -> Tensor:
    """Windows (b, w, window) of pieces (b, c, time), evenly spread."""
    long = [part for part in parts if part.shape[-1] >= window]
    step = 1 + sum(part.shape[1] * (part.shape[-1] - window) for part in long) // WINDOWS
    return torch.cat([part.unfold(-1, window, step).flatten(1, 2) for part in long], 1)


def residuals(factors: tuple[Tensor, Tensor], w: Tensor, past: int, center: str | None) -> Tensor:
    """Truth minus forecast for windows (b, w, past + horizon): (b, w, horizon)."""
    centre = centre_of(w[..., :past], center)
    w = w - centre
    found: Tensor = matrix_of(*factors).matmul(w[..., :past])
    return w[..., past:] - found


def best_ridge(head: Moments, w: Tensor, scale: Tensor) -> Tensor:
    """For each group the ridge with the least squared error on the windows (b, w, M) of the tail.

    scale: what ridges are compared with, (b,).
    """
    try_one = _tail_error if head.past > DENSE_UP_TO else _dense_tail_error(head, w)
    best, least, worse = scale, torch.full_like(scale, torch.inf), 0
    for relative in RIDGES:
        error = try_one(head, w, relative * scale).nan_to_num(torch.inf)
        better = error < least
        best, least = torch.where(better, relative * scale, best), torch.where(better, error, least)
        worse = 0 if bool(better.any()) else worse + 1
        if worse == 2:  # errors fall and rise: smaller ridges take the longest where the past is long
            break
    return best


def _tail_error(head: Moments, w: Tensor, ridge: Tensor) -> Tensor:
    found = fit(head, ridge, None, 0, search=True)
    return residuals((found.left, found.right), w, head.past, head.center).square().mean((1, 2))


def _dense_tail_error(head: Moments, w: Tensor) -> Callable[[Moments, Tensor, Tensor], Tensor]:
    """The same with dense forecasters, which share one Gram matrix: quicker where the past is short."""
    L, null = head.past, null_vector(head.center, head.past)
    B = dense_gram(head, head.window)
    K, P = B[:, :L, :L], B[:, :L, L:]
    if null is not None:
        K = K + head.scale()[:, None, None] * torch.outer(null, null)
    w = w - centre_of(w[..., :L], head.center)

    def error(_: Moments, __: Tensor, ridge: Tensor) -> Tensor:
        shifted = K.clone()
        shifted.diagonal(dim1=-2, dim2=-1).add_(ridge[:, None])
        factor, failed = torch.linalg.cholesky_ex(shifted)
        lost = w[..., L:] - w[..., :L] @ torch.cholesky_solve(P, factor)
        return torch.where(failed == 0, lost.square().mean((1, 2)), torch.inf)

    return error


def quantiles(of: Tensor) -> Tensor:
    """Quantiles of residuals (b, w, H) by step ahead: (b, LEVELS, H)."""
    values = of.sort(1).values
    return torch.stack([quantile(values, k / (LEVELS - 1)) for k in range(LEVELS)], 1)


def quantile(values: Tensor, level: float) -> Tensor:
    """Of sorted values (b, n, H), which stand for evenly spaced levels: (b, H)."""
    place = level * (values.shape[1] - 1)
    low = int(place)
    return torch.lerp(values[:, low], values[:, min(low + 1, values.shape[1] - 1)], place - low)
