"""Pictures of forecasts and of forecasters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..pictures import SIGNED, Picture, bare, new_figure, styled

_BLUE, _ORANGE, _GREY = "#0072B2", "#D55E00", "#333333"


@styled
def forecast_picture(
    values: Any, forecast: Any, lower: Any, upper: Any, names: Sequence[str], truth: Any = None
) -> Picture:
    """The last values (time, columns), the forecasts (horizon, columns), and the truth where known."""
    horizon = len(forecast)
    shown, ahead = min(len(values), 3 * horizon), np.arange(1, horizon + 1)
    count = min(4, len(names))
    figure, axes = new_figure(8, 1.2 + 1.6 * count, count, 1, sharex=True)
    for k, ax in enumerate(axes[:, 0]):
        ax.plot(np.arange(1 - shown, 1), values[-shown:, k], color=_GREY, linewidth=0.9)
        ax.fill_between(
            ahead, lower[:, k], upper[:, k], color=_ORANGE, alpha=0.2, linewidth=0, label="interval"
        )
        if truth is not None:
            ax.plot(ahead, truth[:, k], color=_GREY, linewidth=0.9, linestyle="--", label="truth")
        ax.plot(ahead, forecast[:, k], color=_ORANGE, linewidth=1.4, label="forecast")
        ax.set_title(names[k], loc="left")
        ax.axvline(0.5, color="#999999", linewidth=0.6)
    axes[0, 0].legend(loc="upper left", ncols=3)
    axes[-1, 0].set_xlabel("steps ahead")
    return Picture(
        "forecast", "A forecast", "The last values, the forecast and its bounds.", figure, vector=True
    )


@styled
def matrix_picture(W: Any, ranks: Any, displacement_ranks: Any) -> Picture:
    """W (horizon, past) as a picture, and its singular values beside those of its displacement."""
    figure, axes = new_figure(9, 2.9, 1, 2, width_ratios=(2, 1))
    size = np.abs(W).max() / 4
    axes[0, 0].imshow(W, cmap=SIGNED, vmin=-size, vmax=size, aspect="auto", interpolation="nearest")
    axes[0, 0].set_title("weights: forecasts (rows) of past values (columns)", loc="left")
    bare(axes[0, 0])
    axes[0, 1].semilogy(np.arange(1, len(ranks) + 1), ranks / ranks[0], color=_BLUE, label="of W")
    axes[0, 1].semilogy(
        np.arange(1, len(displacement_ranks) + 1), displacement_ranks / displacement_ranks[0], color=_ORANGE,
        marker=".", label="of its displacement",
    )  # fmt: skip
    axes[0, 1].set_ylim(1e-13, 2)
    axes[0, 1].set_title("singular values", loc="left")
    axes[0, 1].legend()
    return Picture("weights", "A forecaster", "W has full rank, and its displacement a small one.", figure)
