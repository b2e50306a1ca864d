"""Series as users have them, as tensors: NumPy, torch or pandas, one or several, with gaps or without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

GAPS = ("error", "split")


def as_tensor(who: str, values: Any, what: str = "series") -> Tensor:
    """Values as float64 on the CPU; infinite ones are an error that says where."""
    if isinstance(values, Tensor):
        if values.is_complex():
            raise TypeError(f"{who}: the {what} must be real, got {values.dtype}.")
        found = values.detach().to("cpu", torch.float64)
    else:
        try:
            found = torch.from_numpy(_as_array(values))
        except (TypeError, ValueError):
            raise TypeError(
                f"{who}: the {what} must be numbers, (time,) or (time, channels), got {_named(values)}."
            ) from None
    infinite = found.isinf()
    if bool(infinite.any()):
        raise ValueError(f"{who}: infinite value in the {what}, at {_place(infinite)}.")
    return found


def _as_array(values: Any) -> np.ndarray:
    """float64, NaN where pandas has NA or a mask is set. TypeError for what is not numbers."""
    array = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    if array.dtype == object and hasattr(values, "isna"):
        array = np.where(values.isna(), np.nan, array)
    if array.dtype.kind not in "biuf" and array.dtype != object:
        raise TypeError
    array = np.array(array, dtype=np.float64)
    if isinstance(values, np.ma.MaskedArray):
        array[np.ma.getmaskarray(values)] = np.nan
    return array


def as_list(who: str, series: Any) -> tuple[list[Tensor], bool]:
    """Series as (channels, time), and whether they came with an axis of channels."""
    several = isinstance(series, list | tuple) and len(series) > 0 and not np.isscalar(series[0])
    if several:
        given = [as_tensor(who, each, f"series {index}") for index, each in enumerate(series)]
    else:
        given = [as_tensor(who, series)]
    axes = {each.ndim for each in given}
    if not axes <= {1, 2} or len(axes) > 1 or not all(each.numel() for each in given):
        shapes = ", ".join(str(tuple(each.shape)) for each in given[:4])
        raise ValueError(f"{who}: a series must have shape (time,) or (time, channels), got {shapes}.")
    if len({each.shape[1:] for each in given}) > 1:
        raise ValueError(
            f"{who}: all series must have as many channels, got {sorted({each.shape[1] for each in given})}."
        )
    return [each.mT if each.ndim == 2 else each[None] for each in given], axes == {2}


def check_values(who: str, series: Sequence[Tensor], gaps: str) -> None:
    """Errors for gaps that are not to be cut at, channels that say nothing, and squares out of range."""
    for index, each in enumerate(series):
        missing = each.isnan()
        if gaps == "error" and bool(missing.any()):
            place = _place(missing.mT if len(each) > 1 else missing[0])
            which = f" of series {index}" if len(series) > 1 else ""
            raise ValueError(
                f"{who}: no value (NaN) at {place}{which}; fill it, or cut the series with gaps='split'."
            )
    for channel in range(len(series[0])):
        values = torch.cat([each[channel][~each[channel].isnan()] for each in series])
        if not len(values) or bool((values == values[0]).all()):
            what = "is constant, so there is nothing to forecast" if len(values) else "has no values"
            raise ValueError(f"{who}: channel {channel} {what}: leave it out.")
        span = float(values.max() - values.min())
        if not 1e-140 < span < 1e140:
            raise ValueError(
                f"{who}: channel {channel} spans {span:.1e}, and its square is no float64: scale it."
            )


def pieces(channel: Tensor, least: int) -> list[Tensor]:
    """The stretches of at least so many values between the gaps of one channel (time,)."""
    edges = torch.cat((torch.tensor([-1]), channel.isnan().nonzero().flatten(), torch.tensor([len(channel)])))
    spans = zip((edges[:-1] + 1).tolist(), edges[1:].tolist(), strict=True)
    return [channel[start:end] for start, end in spans if end - start >= least]


def batches(
    series: Sequence[Tensor], least: int, per_channel: bool, whole: bool, size: int
) -> list[list[Tensor]]:
    """Batches of groups, each batch as its pieces (groups, channels, time); a group shares a forecaster.

    Without `per_channel` there is one batch of one group. With it each channel is a group: up to `size` of
    them in a batch if the series have no gaps (`whole`), else one.
    """
    long = [each for each in series if each.shape[-1] >= least]
    if not per_channel:
        if whole:
            return [[each[None] for each in long]]
        return [[piece[None, None] for each in long for channel in each for piece in pieces(channel, least)]]
    channels = len(series[0])
    if whole:
        starts = range(0, channels, size)
        return [[each[start : start + size, None] for each in long] for start in starts]
    return [
        [piece[None, None] for each in long for piece in pieces(each[channel], least)]
        for channel in range(channels)
    ]


def _place(where: Tensor) -> str:
    index = where.nonzero()[0].tolist()
    return f"time {index[0]}" + (f", channel {index[1]}" if len(index) > 1 else "")


def _named(values: Any) -> str:
    dtypes = values.dtypes if hasattr(values, "columns") else [getattr(values, "dtype", None)]
    names = ", ".join(dict.fromkeys(str(dtype) for dtype in dtypes if dtype is not None))
    return type(values).__name__ + (f" of {names}" if names else "")
