"""The last part of the series, held out: it chooses the ridge and gives intervals."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .fitting import fit, matrix_of
from .moments import Moments

WINDOWS = 512  # of the tail, evenly spread, that errors are taken from
RIDGES = tuple(10.0**k for k in range(-6, 1))  # of the mean square of a centred value
LEVELS = 201  # quantiles of the residuals that are kept


def centre_of(x: Tensor, center: str | None) -> Tensor:
    """The centre of windows (..., past), (..., 1)."""
    if center is None:
        return torch.zeros_like(x[..., :1])
    return x[..., -1:] if center == "last" else x.mean(-1, keepdim=True)


def windows(parts: Sequence[Tensor], window: int, most: int = WINDOWS) -> Tensor:
    """Windows (b, w, window) of pieces (b, c, time), evenly spread."""
    every = [part.unfold(-1, window, 1).flatten(1, 2) for part in parts if part.shape[-1] >= window]
    if not every:
        return torch.empty(0)
    step = max(1, sum(part.shape[1] for part in every) // most)
    return torch.cat([part[:, ::step] for part in every], 1)


def residuals(factors: tuple[Tensor, Tensor], w: Tensor, past: int, center: str | None) -> Tensor:
    """Truth minus forecast for windows (b, w, past + horizon): (b, w, horizon)."""
    centre = centre_of(w[..., :past], center)
    w = w - centre
    found: Tensor = matrix_of(*factors).matmul(w[..., :past])
    return w[..., past:] - found


def best_ridge(head: Moments, w: Tensor) -> Tensor:
    """For each group the ridge with the least squared error on the windows (b, w, M) of the tail."""
    scale = head.scale().clamp(min=torch.finfo(torch.float64).tiny)
    tried = []
    for relative in RIDGES:
        found = fit(head, relative * scale, None, 0, search=True)
        error = residuals((found.left, found.right), w, head.past, head.center).square().mean((1, 2))
        tried.append(error.nan_to_num(torch.inf))
    best = torch.stack(tried).argmin(0)
    return torch.tensor(RIDGES, dtype=torch.float64)[best] * scale


def quantiles(of: Tensor) -> Tensor:
    """Quantiles of residuals (b, w, H) by step ahead: (b, LEVELS, H)."""
    levels = torch.linspace(0, 1, LEVELS, dtype=of.dtype)
    return torch.stack([torch.quantile(group, levels, dim=0) for group in of])


def quantile(kept: Tensor, level: float) -> Tensor:
    """One level, between those that are kept: (b, H)."""
    place = level * (kept.shape[1] - 1)
    low = min(int(place), kept.shape[1] - 2)
    return torch.lerp(kept[:, low], kept[:, low + 1], place - low)
