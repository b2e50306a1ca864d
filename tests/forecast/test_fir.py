"""Filters between two series: against least squares, and an echo that is cancelled."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchldr.forecast import fir

from .dense import series

X = series(1, 800)[0].numpy()
Y = series(1, 800, seed=1)[0].numpy()


@pytest.mark.parametrize("taps", [1, 2, 17, 64])
def test_it_is_least_squares(taps):
    rows = np.lib.stride_tricks.sliding_window_view(X, taps)[:, ::-1]
    right = np.linalg.lstsq(rows, Y[taps - 1 :], rcond=None)[0]
    assert np.allclose(fir(X, Y, taps), right, atol=1e-8)
    assert torch.allclose(
        fir(torch.from_numpy(X), torch.from_numpy(Y), taps), torch.from_numpy(right), atol=1e-8
    )


def test_an_echo_goes():
    generator = np.random.default_rng(0)
    speaker, voice = generator.standard_normal((2, 5000))
    room = generator.standard_normal(100) * 0.9 ** np.arange(100)
    microphone = 0.1 * voice + np.convolve(speaker, room)[:5000]
    left = microphone - np.convolve(speaker, fir(speaker, microphone, 100))[:5000]
    assert np.square(left - 0.1 * voice).mean() < 1e-3 * np.square(microphone).mean()


def test_linear_prediction():
    h = fir(X[:-1] - X.mean(), X[1:] - X.mean(), 30)
    residual = (X[1:] - X.mean() - np.convolve(X[:-1] - X.mean(), h)[: len(X) - 1])[30:]
    assert residual.var() < 1.3  # the noise of the autoregression has 1


@pytest.mark.parametrize(
    ("x", "y", "options", "message"),
    [
        (X, Y[:-1], {}, "shape"),
        (X[:2], Y[:2], {}, "at least taps=3"),
        (X[None], Y[None], {}, "shape"),
        (X, np.where(X > 1, np.nan, Y), {}, "gaps"),
        (X, Y, {"ridge": -1}, "ridge must be"),
    ],
)
def test_wrong_input(x, y, options, message):
    with pytest.raises(ValueError, match=message):
        fir(x, y, 3, **options)
