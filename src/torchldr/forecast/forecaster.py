"""LinearForecaster: ridge regression from the last values of a series to the next, in closed form."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from ..core.checks import check_dtype
from .bilinear import Bilinear
from .fitting import Fitted, fit, matrix_of
from .module import Forecast, balanced, module_of
from .moments import Moments, moments
from .parameters import WHO, Parameters, is_number
from .rounding import rounded_generators
from .series import as_list, as_tensor, batches, check_values
from .solvers import DENSE_UP_TO
from .storage import read, write
from .tail import best_ridge, centre_of, quantile, quantiles, residuals, windows
from .weighted import FREE_UP_TO

_CHUNK = 1 << 22  # values of the windows that `score` multiplies at a time
MOST_TOGETHER = 64  # channels of their own that are fitted as one batch
_NUMBERS = 3 << 20  # of a batch of dense matrices: the allocator keeps 24 MB, and asks for more each time
SWEEPS = 6
_FITTED_WITH = ("past", "horizon", "center", "per_channel")  # what a fitted forecaster depends on


class Interval(NamedTuple):
    """A forecast, and the bounds that the given share of errors on the tail kept to, for each step ahead."""

    forecast: Any
    lower: Any
    upper: Any


class LinearForecaster(Parameters):
    """Forecast the next `horizon` values of a series from its last `past` values, linearly.

    This is the ridge regression over all windows, stored as a Toeplitz-like matrix: its displacement rank is
    at most 2 c + 4 for c channels, and 2 to 4 is enough in practice. A fit computes it in closed form from a
    few correlations of the series, without making the windows.

    Args:
        past: number of values that a forecast sees.
        horizon: number of values that it predicts.
        rank: displacement rank of the forecaster, which then has `rank * (past + horizon)` weights. None
            keeps the exact ridge regression.
        ridge: added to the diagonal of the windows' mean outer product; "auto" takes the best on the tail.
        center: the value that is subtracted from each window and added to its forecast: "last", "mean" (of
            the past), or None for neither.
        per_channel: whether each channel has a forecaster of its own; else all share one.
        gaps: "error" raises for NaN; "split" cuts the series there.
        holdout: share of the series, at its end, that chooses the ridge and gives intervals. The final fit
            uses the whole series. With 0 there are no intervals, and `ridge` must be a number.
        sweeps: with a `rank`, number of steps that improve all weights together; they run where
            `rank * past` is at most 1,500. None means 6, or 0 with `per_channel`.

    Attributes:
        ridge_: the ridge of the fit: a number, or one for each channel.
        rank_: the displacement rank.
        singular_values_: singular values of the exact displacement, relative to the first.
        error_: estimated relative rounding error of the exact weights.

    Examples:
        >>> import numpy as np
        >>> t = np.arange(2000)
        >>> series = np.sin(2 * np.pi * t / 24) + 0.1 * np.random.default_rng(0).standard_normal(2000)
        >>> f = LinearForecaster(past=96, horizon=24, rank=2).fit(series)
        >>> f.predict(series[-96:]).shape
        (24,)
        >>> sum(p.numel() for p in f.module().parameters())  # a dense one has 2,304
        240
    """

    def __init__(
        self,
        past: int,
        horizon: int,
        *,
        rank: int | None = None,
        ridge: float | str = "auto",
        center: str | None = "last",
        per_channel: bool = False,
        gaps: str = "error",
        holdout: float = 0.2,
        sweeps: int | None = None,
    ) -> None:
        self.set_params(
            past=past, horizon=horizon, rank=rank, ridge=ridge, center=center, per_channel=per_channel,
            gaps=gaps, holdout=holdout, sweeps=sweeps,
        )  # fmt: skip

    # Fitting.

    def fit(self, series: Any, y: None = None) -> Self:
        """Fit to a series, or to several.

        Args:
            series: NumPy, torch or pandas, shape (time,) or (time, channels), or a list of such series; of
                several, those shorter than past + horizon add nothing. Standardise channels that share a
                forecaster first.
            y: ignored; pipelines pass it.
        """
        self.check()
        given, channels = as_list(WHO, series)
        check_values(WHO, given, self.gaps)
        level = self._level(given)
        given = [each - level[:, None] for each in given]
        cut = [round(each.shape[-1] * (1 - self.holdout)) for each in given]
        gapless = not any(bool(each.isnan().any()) for each in given)
        parts = [
            [each[:, :at] for each, at in zip(given, cut, strict=True)],
            [each[:, max(0, at - self.past) :] for each, at in zip(given, cut, strict=True)],
            given,
        ]
        heads, tails, whole = (self._batches(part, gapless) for part in parts)
        window = self.past + self.horizon
        if not all(whole):
            pieces = self._batches(given, False, least=1)[whole.index([])]
            longest = max(each.shape[-1] for each in pieces)
            raise ValueError(
                f"{WHO}: a series must have at least past + horizon = {window} values"
                f"{' without a gap' if self.gaps == 'split' else ''}, got {longest}."
            )
        if self.holdout and not (all(heads) and all(tails)):
            more = " more" if gapless else " more, without a gap"
            raise ValueError(
                f"{WHO}: the series is too short for holdout={self.holdout}: before the tail it needs past + "
                f"horizon = {window} values, in the tail {self.horizon}{more}. Give more data, or holdout=0 "
                "and a number for ridge."
            )
        found = [self._fit_batch(*parts) for parts in zip(whole, heads, tails, strict=True)]
        self._set(found, level, channels)
        self._moments: list[Moments] | None = [each[0] for each in found]
        self._continues = gapless and len(given) == 1
        return self

    def _fit_batch(
        self, whole: Sequence[Tensor], head: Sequence[Tensor], tail: Sequence[Tensor]
    ) -> tuple[Moments, Tensor, Fitted, Tensor | None]:
        """For one batch of groups: moments, ridges, the forecasters, quantiles of residuals."""
        every, kept = self._moments_of(whole), None
        ridge = None
        if not isinstance(self.ridge, str):
            ridge = torch.full_like(every.square, float(self.ridge))
        if self.holdout:
            first, w = self._moments_of(head), windows(tail, self.past + self.horizon)
            ridge = best_ridge(first, w, every.scale()) if ridge is None else ridge
            trial = fit(first, ridge, self.rank, self._sweeps(), search=True)
            kept = quantiles(residuals((trial.left, trial.right), w, self.past, self.center))
        assert ridge is not None
        return every, ridge, fit(every, ridge, self.rank, self._sweeps()), kept

    def partial_fit(self, series: Any, y: None = None) -> Self:
        """Add the values that follow those of `fit`; the result is that of `fit` on all, with the same ridge.

        The cost does not depend on how many values came before. Intervals stay those of `fit`.
        """
        if not hasattr(self, "_factors"):
            return self.fit(series)
        if self._moments is None or not self._continues:
            raise ValueError(
                f"{WHO}.partial_fit: what was fitted had several series or gaps, or was loaded; fit again."
            )
        self._check_fitted("partial_fit")
        given, _ = as_list(f"{WHO}.partial_fit", series)
        if len(given) > 1 or len(given[0]) != len(self._level_):
            shapes = [tuple(each.mT.shape) for each in given]
            raise ValueError(
                f"{WHO}.partial_fit: give the next values of the {len(self._level_)} channels, got {shapes}."
            )
        if bool(given[0].isnan().any()):
            raise ValueError(f"{WHO}.partial_fit: the series has no value (NaN) in places; fill them.")
        parts = self._batches([given[0] - self._level_[:, None]], True, least=1)
        more = [of.continued(part) for of, (part,) in zip(self._moments, parts, strict=True)]
        ridges = self._ridges.split([len(of.count) for of in more])
        found = [
            (of, ridge, fit(of, ridge, self.rank, self._sweeps()), None)
            for of, ridge in zip(more, ridges, strict=True)
        ]
        self._set(found, self._level_, self._has_channels, kept=self._quantiles)
        self._moments = more
        return self

    # Using.

    def predict(self, recent: Any, *, interval: float | None = None) -> Any:
        """Forecast the values that follow.

        Args:
            recent: shape (..., past), or (..., past, channels) if `fit` had channels. A longer series is
                cut to its last `past` values.
            interval: a share such as 0.9 gives an `Interval`: the forecast, and the bounds that this share of
                errors on the tail kept to, separately for each step ahead.

        Returns:
            Forecasts, shape (..., horizon) or (..., horizon, channels), float64: torch if `recent` is, else
            NumPy.
        """
        self._check_fitted("predict")
        x = self._rows(f"{WHO}.predict", recent)
        centre = centre_of(x, self.center)
        matrix = self.matrix()
        y = (
            matrix.matmul((x - centre).unsqueeze(-2)).squeeze(-2)
            if self._grouped
            else matrix.matmul(x - centre)
        )
        found = y + centre
        if interval is None:
            return self._like(found, recent)
        if not is_number(interval) or not 0 < interval < 1:
            raise ValueError(f"{WHO}.predict: interval must be between 0 and 1, got {interval!r}.")
        if self._quantiles is None:
            raise ValueError(f"{WHO}.predict: intervals need residuals: fit with holdout above 0.")
        kept = [quantile(self._quantiles, (1 + side * interval) / 2) for side in (-1, 1)]
        bounds = [found + (each if self._grouped else each[0]) for each in kept]
        return Interval(*(self._like(each, recent) for each in (found, *bounds)))

    def error(self, series: Any) -> float:
        """The mean squared error over all windows of a series, or of several, that have no gap."""
        return self._errors("error", series)[0]

    def score(self, series: Any, y: None = None) -> float:
        """R^2 over all windows of a series: 1 is perfect, 0 no better than the mean of each channel."""
        error, variance = self._errors("score", series)
        if not variance:
            raise ValueError(f"{WHO}.score: the series is constant, so R^2 is not defined.")
        return 1 - error / variance

    def _errors(self, method: str, series: Any) -> tuple[float, float]:
        self._check_fitted(method)
        given, _ = as_list(f"{WHO}.{method}", series)
        window, sums = self.past + self.horizon, np.zeros(3)
        for each in given:
            if each.shape[-1] < window or len(each) != len(self._level_):
                raise ValueError(
                    f"{WHO}.{method}: a series must have past + horizon = {window} values or more and "
                    f"{len(self._level_)} channels, got {tuple(each.mT.shape)}."
                )
            variance = (each - each.nanmean(-1, keepdim=True)).square().nanmean()
            for w in each.unfold(-1, window, 1).split(max(1, _CHUNK // (window * len(each))), 1):
                w = w if self._grouped else w.reshape(1, -1, window)
                lost = residuals(self._factors, w, self.past, self.center)
                lost = lost[~lost.isnan()]
                sums += [float(lost.square().sum()), lost.numel(), float(variance) * lost.numel()]
        if not sums[1]:
            raise ValueError(f"{WHO}.{method}: no window of past + horizon = {window} values without a gap.")
        return float(sums[0] / sums[1]), float(sums[2] / sums[1])

    def module(self, dtype: torch.dtype = torch.float32, *, int8: bool = False) -> Forecast:
        """The forecaster as an `nn.Module`: windows (..., past) to (..., horizon).

        With `per_channel`, (..., channels, past) to (..., channels, horizon), which neither `quantize_` nor
        `to_c` knows. The module is a copy: training it leaves the forecaster as it is.

        Args:
            dtype: of its parameters.
            int8: round all parameters to int8 together, so that forecasts change least; `quantize_` and
                `to_c` then round no further. For `rank * past` up to 1,500.
        """
        self._check_fitted("module")
        check_dtype(f"{WHO}.module", dtype)
        matrix = matrix_of(*self._factors)
        G, H = balanced(matrix.G, matrix.H)
        if int8:
            G, H = self._rounded(G, H)
        return module_of(G, H, self.center, dtype)

    def matrix(self) -> Any:
        """W as a structured matrix (horizon, past) in float64; with `per_channel` a stack of them."""
        self._check_fitted("matrix")
        matrix = matrix_of(*self._factors)
        return matrix if self._grouped else matrix[0]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted forecaster to one file for `load`, without what `partial_fit` needs."""
        self._check_fitted("save")
        arrays = {
            "left": self._factors[0],
            "right": self._factors[1],
            "ridges": self._ridges,
            "level": self._level_,
        }
        arrays |= {} if self._quantiles is None else {"quantiles": self._quantiles}
        facts = {"parameters": self.get_params(), "channels": self._has_channels, "error": self.error_}
        write(
            path, facts, {name: t.numpy() for name, t in arrays.items()} | {"values": self.singular_values_}
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The forecaster that `save` wrote."""
        facts, arrays = read(path)
        f = cls(**facts["parameters"])
        f.singular_values_ = arrays.pop("values")
        t = {name: torch.from_numpy(array) for name, array in arrays.items()}
        f._factors, f._ridges, f._level_ = (t["left"], t["right"]), t["ridges"], t["level"]
        f._quantiles, f._has_channels, f._moments = t.get("quantiles"), facts["channels"], None
        f._fitted_with = {name: getattr(f, name) for name in _FITTED_WITH}
        f.rank_, f.error_ = f._factors[0].shape[1], facts["error"]
        f.ridge_ = f._ridges.numpy() if f._grouped else float(f._ridges[0])
        return f

    # Inside.

    @property
    def _grouped(self) -> bool:
        return self.per_channel and self._has_channels

    def _sweeps(self) -> int:
        return (0 if self.per_channel else SWEEPS) if self.sweeps is None else self.sweeps

    def _rounded(self, G: Tensor, H: Tensor) -> tuple[Tensor, Tensor]:
        if self._moments is None or len(G) > 1:
            raise ValueError(f"{WHO}.module: int8=True needs a fit of this process, with one forecaster.")
        if H[0].numel() > FREE_UP_TO:
            raise ValueError(
                f"{WHO}.module: int8=True is for rank * past up to {FREE_UP_TO:,}, got {H[0].numel():,}; "
                "take a lower rank, or quantize_ without it."
            )
        (of,) = self._moments
        exact = fit(of, self._ridges, None, 0)
        problem = Bilinear(of, self._ridges, (exact.left[0], exact.right[0]), generators=True)
        found = rounded_generators(problem, G[0], H[0])
        return found[0][None], found[1][None]

    def _level(self, given: Sequence[Tensor]) -> Tensor:
        """The mean of each channel: subtracted where centring makes that exact, so that less is rounded."""
        if self.center is None:
            return torch.zeros(len(given[0]), dtype=torch.float64)
        return torch.cat(list(given), -1).nanmean(-1)

    def _batches(self, series: Sequence[Tensor], whole: bool, least: int | None = None) -> list[list[Tensor]]:
        window, size = self.past + self.horizon, MOST_TOGETHER
        if self.past <= DENSE_UP_TO:
            size = min(size, max(1, _NUMBERS // window**2))
        return batches(series, least or window, self.per_channel, whole, size)

    def _moments_of(self, parts: Sequence[Tensor]) -> Moments:
        first, *others = (moments(part, self.past, self.horizon, self.center) for part in parts)
        return sum(others, first)

    def _set(self, found: Sequence[Any], level: Tensor, channels: bool, kept: Tensor | None = None) -> None:
        """All that a fit leaves, at once: a failed one leaves nothing."""
        fits: list[Fitted] = [each[2] for each in found]
        self._factors = _joined([each.left for each in fits]), _joined([each.right for each in fits])
        self._ridges = torch.cat([each[1] for each in found])
        new = [each[3] for each in found if each[3] is not None]
        self._quantiles = torch.cat(new) if new else kept
        self._level_, self._has_channels = level, channels
        self._fitted_with = {name: getattr(self, name) for name in _FITTED_WITH}
        self.rank_ = self._factors[0].shape[1]
        self.error_ = max(each.error for each in fits)
        values = _joined([each.values[..., None] for each in fits])[..., 0].numpy()
        ridges = self._ridges.numpy()
        self.singular_values_ = values if self._grouped else values[0]
        self.ridge_: Any = ridges if self._grouped else float(ridges[0])

    def _rows(self, who: str, recent: Any) -> Tensor:
        """The last `past` values, time last, or an error."""
        x, channels = as_tensor(who, recent, "recent values"), len(self._level_)
        if self._has_channels:
            if x.ndim < 2 or x.shape[-1] != channels or x.shape[-2] < self.past:
                raise ValueError(
                    f"{who}: expected (..., {self.past} or more, {channels} channels), got {tuple(x.shape)}."
                )
            x = x.mT
        elif x.ndim < 1 or x.shape[-1] < self.past:
            raise ValueError(
                f"{who}: expected (..., {self.past} or more) values, got shape {tuple(x.shape)}."
            )
        x = x[..., -self.past :]
        if bool(x.isnan().any()):
            raise ValueError(f"{who}: the recent values have gaps (NaN): fill them.")
        return x

    def _like(self, found: Tensor, given: Any) -> Any:
        found = found.mT if self._has_channels else found
        return found.to(given.device) if isinstance(given, Tensor) else found.numpy()

    def _check_fitted(self, method: str) -> None:
        if not hasattr(self, "_factors"):
            raise ValueError(f"{WHO}.{method}: call fit first.")
        for name, value in self._fitted_with.items():
            if getattr(self, name) != value:
                raise ValueError(f"{WHO}.{method}: {name} is no longer that of fit, {value!r}: fit again.")


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Parts (b, r, n) one after the other, filled up with zeros to one r."""
    most = max(part.shape[1] for part in parts)
    return torch.cat([torch.nn.functional.pad(part, (0, 0, 0, most - part.shape[1])) for part in parts])
