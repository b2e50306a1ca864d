"""The filter between two series: system identification, echo cancellation, linear prediction.

The Wiener filter in closed form: the Gram matrices are those of forecasts, windows as long as the filter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.checks import checked_int
from ..functional.fft import fast_length
from .moments import moments
from .parameters import check_ridge
from .series import as_tensor
from .solvers import DENSE_UP_TO, by_cholesky, by_conjugate_gradients


def fir(x: Any, y: Any, taps: int, *, ridge: float = 0.0) -> Any:
    """The filter h that brings sum_k h_k x_{t-k}, k < taps, closest to y_t in least squares.

    Args:
        x, y: input and output, (time,), NumPy, torch or pandas, without gaps.
        taps: length of the filter.
        ridge: added to the diagonal of the mean outer product of the windows of x.

    Returns:
        h, shape (taps,), float64: torch if x is, else NumPy.

    If x is a loudspeaker's signal and y a microphone's, `y - convolve(x, h)[:len(y)]` has no echo. If x is a
    series and y the same series one step later, h predicts.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).standard_normal(1000)
    >>> y = np.convolve(x, [1.0, 0.5, -0.25])[:1000]
    >>> fir(x, y, 3).round(6)
    array([ 1.  ,  0.5 , -0.25])
    """
    checked_int("fir", "taps", taps)
    given = [as_tensor("fir", each, name) for each, name in ((x, "input"), (y, "output"))]
    if given[0].ndim != 1 or given[0].shape != given[1].shape or len(given[0]) < taps:
        shapes = " and ".join(str(tuple(each.shape)) for each in given)
        raise ValueError(
            f"fir: x and y must both have shape (time,) with time at least taps={taps}, got {shapes}."
        )
    if any(bool(each.isnan().any()) for each in given):
        raise ValueError("fir: x and y must have no gaps (NaN).")
    check_ridge("fir", ridge)
    source, target = given
    of = moments(source[None, None], taps, 0, None)
    size = fast_length(len(source))
    cross = torch.fft.rfft(source, size) * torch.fft.rfft(target[taps - 1 :], size).conj()
    right = torch.fft.irfft(cross, size)[None, None, :taps] / of.count
    shift = torch.tensor([ridge], dtype=torch.float64)
    solve = by_cholesky(of, shift) if taps <= DENSE_UP_TO else by_conjugate_gradients(of, shift)[0]
    h: Tensor = solve(right)[0, 0].flip(-1)
    return h.to(x.device) if isinstance(x, Tensor) else h.numpy()
