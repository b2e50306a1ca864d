"""`torchldr forecast`: the next values of the columns of a CSV file."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .columns import read_columns
from .options import AsJson
from .printing import say, show

if TYPE_CHECKING:
    import numpy as np

    from ..forecast import Interval

CENTERS, GAPS = ("last", "mean", "none"), ("error", "split")


def forecast_command(
    file: Annotated[
        Path,
        typer.Argument(help="A CSV file: a line of names, then a line for each time.", show_default=False),
    ],
    past: Annotated[int, typer.Option(min=1, help="Values that a forecast sees.")] = 336,
    horizon: Annotated[int, typer.Option(min=1, help="Values that it predicts.")] = 96,
    rank: Annotated[
        int | None, typer.Option(min=1, help="Displacement rank; without it the exact ridge regression.")
    ] = None,
    columns: Annotated[
        list[str] | None, typer.Option(help="Columns to forecast; by default all that are numbers.")
    ] = None,
    ridge: Annotated[
        float | None, typer.Option(min=0, help="Of standardised columns; without it the best on the tail.")
    ] = None,
    center: Annotated[
        str, typer.Option(help="What is subtracted from windows: last, mean or none.")
    ] = "last",
    per_channel: Annotated[
        bool, typer.Option("--per-channel", help="A forecaster for each column instead of one for all.")
    ] = False,
    gaps: Annotated[str, typer.Option(help="At empty cells: error, or split.")] = "error",
    test: Annotated[float, typer.Option(help="Share of the file that the error is measured on.")] = 0.2,
    interval: Annotated[float, typer.Option(help="Share of residuals within the bounds.")] = 0.9,
    plot: Annotated[Path | None, typer.Option(help="Draw the forecast to this file, .png or .svg.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write forecast.csv and forecaster.npz to this folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Forecast the columns of a CSV file.

    Fits in closed form, measures the error on the last part of the file,
    then fits to all of it and predicts what comes next, with bounds.
    """
    if not file.exists():
        raise FileNotFoundError(f"there is no file {file}.")
    for option, value, known in (("--center", center, CENTERS), ("--gaps", gaps, GAPS)):
        if value not in known:
            raise typer.BadParameter(f"must be one of {', '.join(known)}, got {value!r}.", param_hint=option)
    if rank is not None and rank > min(past, horizon):
        raise typer.BadParameter(f"must be at most {min(past, horizon)}, got {rank}.", param_hint="--rank")
    for option, share in (("--test", test), ("--interval", interval)):
        if not 0 < share < 1:
            raise typer.BadParameter(f"must be between 0 and 1, got {share}.", param_hint=option)
    if plot is not None and plot.suffix.lower() not in (".png", ".svg"):
        raise typer.BadParameter(f"must end in .png or .svg, got {plot.name}.", param_hint="--plot")
    if out is not None and out.exists() and not out.is_dir():
        raise FileExistsError(f"--out {out} is a file: name a folder.")
    from ..forecast import LinearForecaster

    names, values = read_columns(file, columns, gaps=gaps == "split")
    cut = round(len(values) * (1 - test))
    mean, deviation = _standard(values[:cut], names)
    scaled = (values - mean) / deviation
    f = LinearForecaster(
        past, horizon, rank=rank, ridge="auto" if ridge is None else ridge, gaps=gaps,
        center=None if center == "none" else center, per_channel=per_channel,
    )  # fmt: skip
    f.fit(scaled[:cut])
    held_out = scaled[max(0, cut - past) :]
    error, r2 = f.error(held_out), f.score(held_out)
    found: Interval = f.fit(scaled).predict(scaled[-past:], interval=interval)
    forecast, lower, upper = (part * deviation + mean for part in found)
    forecasters = len(names) if per_channel else 1
    weights, dense = f.rank_ * (past + horizon) * forecasters, past * horizon * forecasters
    facts = {
        "columns": names, "past": past, "horizon": horizon, "rank": f.rank_, "weights": weights,
        "dense_weights": dense, "test_error": error, "test_r2": r2,
    }  # fmt: skip
    rows = [
        {"step": h + 1, "column": name, "forecast": float(forecast[h, k]), "lower": float(lower[h, k]),
         "upper": float(upper[h, k])}
        for h in range(horizon) for k, name in enumerate(names)
    ]  # fmt: skip
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        f.save(out / "forecaster.npz")
        with (out / "forecast.csv").open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        say(f"written: {out}")
    if plot is not None:
        from ..forecast.pictures import forecast_picture

        content = forecast_picture(values, forecast, lower, upper, names).encode(plot.suffix[1:].lower())
        plot.parent.mkdir(parents=True, exist_ok=True)
        plot.write_bytes(content)
        say(f"picture: {plot}")
    show({**facts, "ridge": f.ridge_, "forecast": rows} if as_json else rows, as_json)
    say(
        f"rank {f.rank_}: {weights:,} weights (dense: {dense:,})\non the last {test:.0%}: "
        f"mean squared error {error:.4g} of standardised columns, R^2 {r2:.3f}"
    )


def _standard(values: np.ndarray, names: list[str]) -> tuple[Any, Any]:
    """Mean and deviation of each column."""
    import numpy as np

    if not np.isfinite(values).any(0).all():
        raise ValueError("a column has no values before the part that errors are measured on.")
    mean, deviation = np.nanmean(values, 0), np.nanstd(values, 0)
    if (constant := np.flatnonzero(deviation == 0)).size:
        raise ValueError(f"column {names[int(constant[0])]!r} is constant: leave it out with --columns.")
    return mean, deviation
