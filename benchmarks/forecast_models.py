"""Linear forecasters to compare with, written from their papers: ridge, low rank, DLinear, SparseTSF, FITS.

Every one is a module from windows (rows, past) to forecasts (rows, horizon).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from torchldr import StructuredLinear


class Centred(nn.Module):
    """Minus the last value (or the mean) before, plus it after."""

    def __init__(self, core: nn.Module, mean: bool = False) -> None:
        super().__init__()
        self.core, self.mean = core, mean

    def forward(self, x: Tensor) -> Tensor:
        centre = x.mean(-1, keepdim=True) if self.mean else x[..., -1:]
        return self.core(x - centre) + centre


class DLinear(nn.Module):
    """Zeng et al. 2023: a moving average of 25 and what it leaves, a linear map for each."""

    def __init__(self, past: int, horizon: int, width: int = 25) -> None:
        super().__init__()
        self.trend, self.rest, self.width = nn.Linear(past, horizon), nn.Linear(past, horizon), width

    def forward(self, x: Tensor) -> Tensor:
        half = (self.width - 1) // 2
        padded = torch.cat((x[:, :1].expand(-1, half), x, x[:, -1:].expand(-1, half)), 1)
        trend = nn.functional.avg_pool1d(padded[:, None], self.width, 1)[:, 0]
        return self.trend(trend) + self.rest(x - trend)


class SparseTSF(nn.Module):
    """Lin et al. 2024: smooth over a period, then one small linear map for all its phases; minus the mean."""

    def __init__(self, past: int, horizon: int, period: int) -> None:
        super().__init__()
        self.period, self.horizon = period, horizon
        self.steps, self.ahead = past // period, -(-horizon // period)
        kernel = 2 * (period // 2) + 1
        self.smooth = nn.Conv1d(1, 1, kernel, padding=kernel // 2, bias=False)
        self.linear = nn.Linear(self.steps, self.ahead, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        centre = x.mean(-1, keepdim=True)
        x = x - centre
        x = x + self.smooth(x[:, None])[:, 0]
        phases = x[:, -self.steps * self.period :].unflatten(-1, (self.steps, self.period)).mT
        return self.linear(phases).mT.flatten(1)[:, : self.horizon] + centre


class FITS(nn.Module):
    """Xu et al. 2024: from the low frequencies of a window to those of a longer one, a complex linear map."""

    def __init__(self, past: int, horizon: int, period: int, harmonics: int = 6) -> None:
        super().__init__()
        self.past, self.horizon = past, horizon
        self.cut = min(past // 2 + 1, past // period * harmonics + 10)
        self.out = int(self.cut * (past + horizon) / past)
        self.real, self.imag = nn.Linear(self.cut, self.out), nn.Linear(self.cut, self.out)

    def forward(self, x: Tensor) -> Tensor:
        centre, scale = x.mean(-1, keepdim=True), (x.var(-1, keepdim=True) + 1e-5).sqrt()
        low = torch.fft.rfft((x - centre) / scale)[:, : self.cut]
        real = self.real(low.real) - self.imag(low.imag)
        imag = self.real(low.imag) + self.imag(low.real)
        total = self.past + self.horizon
        found = torch.fft.irfft(torch.complex(real, imag), total) * (total / self.past)
        return found[:, -self.horizon :] * scale + centre


def dense_ridge(series: np.ndarray, past: int, horizon: int, ridge: float) -> tuple[Tensor, Tensor]:
    """W and K of the ridge regression on windows minus their last value, the textbook way."""
    K, P, count = np.zeros((past, past)), np.zeros((past, horizon)), 0
    for channel in series.T:
        windows = np.lib.stride_tricks.sliding_window_view(channel, past + horizon)
        for start in range(0, len(windows), 4096):
            w = windows[start : start + 4096]
            w = w - w[:, past - 1 : past]
            K += w[:, :past].T @ w[:, :past]
            P += w[:, :past].T @ w[:, past:]
            count += len(w)
    K = K / count + ridge * np.eye(past)
    return torch.from_numpy(np.linalg.solve(K, P / count).T.copy()), torch.from_numpy(K)


def dense_module(W: Tensor) -> nn.Module:
    linear = nn.Linear(W.shape[1], W.shape[0], bias=False)
    linear.weight.data = W.float()
    return Centred(linear)


def low_rank_module(W: Tensor, K: Tensor, rank: int) -> nn.Module:
    """The best of this rank in the norm that the windows give (reduced-rank regression)."""
    root = torch.linalg.cholesky(K)
    U, S, V = torch.linalg.svd(W @ root, full_matrices=False)
    left, right = U[:, :rank] * S[:rank].sqrt(), S[:rank].sqrt()[:, None] * V[:rank]
    right = torch.linalg.solve_triangular(root, right, upper=False, left=False)
    linear = StructuredLinear(W.shape[1], W.shape[0], bias=False, structure="low_rank", rank=rank)
    linear.load_state_dict({"G": left.mT.float(), "H": right.float()})
    return Centred(linear)


def train(
    model: nn.Module,
    train: np.ndarray,
    valid: np.ndarray,
    past: int,
    horizon: int,
    seed: int,
    rate: float,
    epochs: int,
) -> nn.Module:
    """Adam on the squared error, 512 windows a step, the rate decaying; the best epoch on validation."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.from_numpy(windows(train, past + horizon).astype(np.float32))
    optimizer = torch.optim.Adam(model.parameters(), rate)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    best, kept = float("inf"), model.state_dict()
    for _ in range(epochs):
        for index in torch.randperm(len(rows), generator=generator).split(512):
            w = rows[index]
            loss = (model(w[:, :past]) - w[:, past:]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
        error = test_error(model, valid, past, horizon)
        if error < best:
            best, kept = error, {k: v.clone() for k, v in model.state_dict().items()}
    model.load_state_dict(kept)
    return model


def windows(series: np.ndarray, size: int) -> np.ndarray:
    view = np.lib.stride_tricks.sliding_window_view(series, size, axis=0)  # (windows, channels, size)
    return view.reshape(-1, size)


@torch.no_grad()
def test_error(model: nn.Module, series: np.ndarray, past: int, horizon: int) -> float:
    """The mean squared error over all windows and channels."""
    total, count = 0.0, 0
    for channel in series.T:
        for w in (
            torch.from_numpy(np.ascontiguousarray(channel)).float().unfold(0, past + horizon, 1).split(2048)
        ):
            total += float((model(w[:, :past]) - w[:, past:]).double().square().sum())
            count += w.shape[0] * horizon
    return total / count
