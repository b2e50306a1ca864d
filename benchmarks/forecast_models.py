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

    centred, rate = False, 0.005

    def __init__(self, past: int, horizon: int, period: int, width: int = 25) -> None:
        super().__init__()
        self.trend, self.rest, self.width = nn.Linear(past, horizon), nn.Linear(past, horizon), width
        self.left = torch.ones(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        half = (self.width - 1) // 2
        padded = torch.cat((x[:, :1].expand(-1, half), x, x[:, -1:].expand(-1, half)), 1)
        trend = nn.functional.avg_pool1d(padded[:, None], self.width, 1)[:, 0]
        return self.trend(trend) + self.rest(x - trend)

    def features(self, x: Tensor) -> Tensor:
        return torch.cat((x, torch.ones_like(x[:, :1])), 1)

    def matrix(self) -> Tensor:
        half = (self.width - 1) // 2
        rows = nn.functional.pad(self.trend.weight - self.rest.weight, (2 * half + 1, 2 * half)).cumsum(1)
        moved = (rows[:, self.width :] - rows[:, : -self.width]) / self.width
        first, inner, last = moved.split((half, self.trend.in_features, half), 1)
        ends = torch.zeros_like(inner)
        ends[:, 0], ends[:, -1] = first.sum(1), last.sum(1)
        bias = self.trend.bias + self.rest.bias
        return torch.cat((self.rest.weight + inner + ends, bias[:, None]), 1)


class SparseTSF(nn.Module):
    """Lin et al. 2024: smooth over a period, then one small linear map for all its phases; minus the mean."""

    centred, rate = True, 0.02

    def __init__(self, past: int, horizon: int, period: int) -> None:
        super().__init__()
        self.past, self.period, self.horizon = past, period, horizon
        self.steps, self.ahead = past // period, -(-horizon // period)
        kernel = 2 * (period // 2) + 1
        self.smooth = nn.Conv1d(1, 1, kernel, padding=kernel // 2, bias=False)
        self.linear = nn.Linear(self.steps, self.ahead, bias=False)
        self.left = torch.ones(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        centre = x.mean(-1, keepdim=True)
        x = x - centre
        x = x + self.smooth(x[:, None])[:, 0]
        phases = x[:, -self.steps * self.period :].unflatten(-1, (self.steps, self.period)).mT
        return self.linear(phases).mT.flatten(1)[:, : self.horizon] + centre

    def features(self, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True)

    def matrix(self) -> Tensor:
        """Row j p + q: the smoothing kernel at q, q + p, .., by the weights of output j."""
        kernel = self.smooth.weight[0, 0]
        half = len(kernel) // 2
        kernel = kernel + nn.functional.pad(kernel.new_ones(1), (half, half))
        rows = nn.functional.conv_transpose1d(
            self.linear.weight[:, None], kernel[None, None], stride=self.period
        )[:, 0]
        before = self.past - self.steps * self.period - half  # where the first row starts
        width = self.past + self.period - 1
        left = before + self.period - 1
        rows = nn.functional.pad(rows, (left, width - left - rows.shape[1]))
        return rows.unfold(1, self.past, 1).flip(1).flatten(0, 1)[: self.horizon]


class FITS(nn.Module):
    """Xu et al. 2024: from the low frequencies of a window to those of a longer one, a complex linear map."""

    centred, rate = True, 0.004

    def __init__(self, past: int, horizon: int, period: int, harmonics: int = 6) -> None:
        super().__init__()
        self.past, self.horizon = past, horizon
        self.cut = min(past // 2 + 1, past // period * harmonics + 10)
        self.out = int(self.cut * (past + horizon) / past)
        self.real, self.imag = nn.Linear(self.cut, self.out), nn.Linear(self.cut, self.out)
        self.left = self._time(torch.eye(2 * self.out)).mT

    def forward(self, x: Tensor) -> Tensor:
        centre, scale = x.mean(-1, keepdim=True), (x.var(-1, keepdim=True) + 1e-5).sqrt()
        low = torch.fft.rfft((x - centre) / scale)[:, : self.cut]
        real = self.real(low.real) - self.imag(low.imag)
        imag = self.real(low.imag) + self.imag(low.real)
        return self._time(torch.cat((real, imag), 1)) * scale + centre

    def _time(self, spectrum: Tensor) -> Tensor:
        """The forecast with these frequencies, real parts and then imaginary ones."""
        total = self.past + self.horizon
        found = torch.fft.irfft(torch.complex(*spectrum.chunk(2, 1)), total) * (total / self.past)
        return found[:, -self.horizon :]

    def features(self, x: Tensor) -> Tensor:
        scale = (x.var(-1, keepdim=True) + 1e-5).sqrt()
        low = torch.fft.rfft(x - x.mean(-1, keepdim=True))[:, : self.cut]
        return torch.cat((low.real, low.imag, scale), 1)

    def matrix(self) -> Tensor:
        real, imag = self.real, self.imag
        top = torch.cat((real.weight, -imag.weight, (real.bias - imag.bias)[:, None]), 1)
        return torch.cat((top, torch.cat((imag.weight, real.weight, (real.bias + imag.bias)[:, None]), 1)))


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


class Sums:
    """Mean products over all windows of a part: all that the squared error of a linear model depends on."""

    def __init__(self, model: nn.Module, series: np.ndarray, past: int, horizon: int) -> None:
        self.count, self.K, self.P, self.square = 0, 0.0, 0.0, 0.0
        for channel in series.T:
            values = torch.from_numpy(np.ascontiguousarray(channel))
            for w in values.unfold(0, past + horizon, 1).split(4096):
                x, y = w[:, :past], w[:, past:]
                f = model.features(x)
                y = y - x.mean(-1, keepdim=True) if model.centred else y
                self.count += len(w)
                self.K, self.P = self.K + f.mT @ f, self.P + y.mT @ f
                self.square += float(y.square().sum())
        left, scale = model.left.double(), self.count * horizon
        self.inner = (left.mT @ left).float()
        self.K = (self.K / scale).float()
        self.P = ((left.mT @ self.P if left.numel() > 1 else self.P) / scale).float()
        self.square /= scale

    def slope(self, M: Tensor) -> tuple[Tensor, float]:
        """The gradient by M of the mean squared error of left M features, and this error."""
        product = M @ self.K
        product = self.inner @ product if self.inner.numel() > 1 else product
        return 2 * (product - self.P), float((M * (product - 2 * self.P)).sum()) + self.square


def train(model: nn.Module, train: Sums, valid: Sums, steps: int, every: int = 20) -> nn.Module:
    """Adam on the squared error of all windows at once, the rate falling to 0; the best on validation.

    The models are linear in a few features of a window, so sums over windows give the exact gradient.
    """
    optimizer = torch.optim.Adam(model.parameters(), model.rate, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    best, kept = float("inf"), model.state_dict()
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        M = model.matrix()
        M.backward(train.slope(M.detach())[0])
        optimizer.step()
        schedule.step()
        if step % every == 0:
            with torch.no_grad():
                error = valid.slope(model.matrix())[1]
            if error < best:
                best, kept = error, {k: v.clone() for k, v in model.state_dict().items()}
    model.load_state_dict(kept)
    return model


def train_by_batches(
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
