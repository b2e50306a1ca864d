"""The oracle: windows, their Gram matrix, and a ridge regression, as in a textbook."""

from __future__ import annotations

import torch
from torch import Tensor


def windows(series: Tensor, size: int, past: int, center: str | None) -> Tensor:
    """Centred windows (rows, size) of series (channels, time)."""
    rows = torch.cat([channel.unfold(0, size, 1) for channel in series])
    if center is None:
        return rows
    return rows - (rows[:, past - 1 : past] if center == "last" else rows[:, :past].mean(1, keepdim=True))


def gram_reference(series: Tensor, past: int, horizon: int, center: str | None) -> Tensor:
    """mean w w^T over all windows."""
    w = windows(series, past + horizon, past, center)
    return w.mT @ w / len(w)


def ridge_reference(series: Tensor, past: int, horizon: int, center: str | None, ridge: float) -> Tensor:
    """W (horizon, past)."""
    B = gram_reference(series, past, horizon, center)
    K = B[:past, :past] + ridge * torch.eye(past, dtype=B.dtype)
    return torch.linalg.solve(K, B[:past, past:]).mT


def series(channels: int = 1, time: int = 400, seed: int = 0) -> Tensor:
    """Sums of an autoregression, a daily sine and a level: (channels, time)."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(channels, time, dtype=torch.float64, generator=generator)
    x = torch.zeros_like(noise)
    for t in range(2, time):
        x[:, t] = 1.2 * x[:, t - 1] - 0.4 * x[:, t - 2] + noise[:, t]
    turns = torch.arange(time) * (2 * torch.pi / 24)
    return x + 3 * torch.sin(turns + torch.arange(channels)[:, None]) + 5
