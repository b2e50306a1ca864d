"""Fit and serve the forecasters of many series on Ray Data: a row for each block of series.

    pip install torchldr 'ray[data]'
    python examples/forecast_ray.py --series 1000           # a cluster on this machine, started and stopped
    python examples/forecast_ray.py --address HEAD:6379     # one that runs

Ray hands a row to another worker when one dies (`--die` kills one, to see it). A fitted forecaster is a few
kilobytes: the dataset of all of them stays in Ray's store, and answers from there.
"""

from __future__ import annotations

import argparse
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.data

from torchldr.forecast import LinearForecaster

DAY = 48


def block(first: int, count: int, time: int) -> np.ndarray:
    """Stand-in for reading a part of the data: generated series (time, count)."""
    generator, t = np.random.default_rng(first), np.arange(time)[:, None]
    phases, noise = generator.uniform(0, 6, count), generator.standard_normal((time, count))
    for step in range(1, time):
        noise[step] += 0.9 * noise[step - 1]
    return np.sin(2 * np.pi * t / DAY + phases) + 0.3 * noise


def fit(row: dict[str, Any], time: int, sizes: dict[str, Any], die: str | None) -> dict[str, Any]:
    """The row with the forecasters of its block, and their error on the last tenth."""
    if die is not None and row["first"] == 0 and not Path(die).exists():
        Path(die).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    series, cut = block(row["first"], row["count"], time), int(0.9 * time)
    f = LinearForecaster(**sizes, per_channel=True).fit(series[:cut])
    return {**row, "forecasters": f, "error": f.error(series[cut - f.past :])}


def predict(row: dict[str, Any], time: int) -> dict[str, Any]:
    """Forecasts of a block from its recent values, one list for each series."""
    f = row["forecasters"]
    recent = block(row["first"], row["count"], time)[-f.past :]
    return {"first": row["first"], "error": row["error"], "forecasts": f.predict(recent).T.tolist()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", help="host:port of a cluster, or auto; without it one is started here")
    parser.add_argument("--series", type=int, default=200)
    parser.add_argument("--block", type=int, default=50)
    parser.add_argument("--time", type=int, default=17520)
    parser.add_argument("--past", type=int, default=336)
    parser.add_argument("--horizon", type=int, default=96)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument(
        "--die", metavar="FILE", help="kill the worker of the first block once; FILE notes it"
    )
    given = parser.parse_args()
    ray.init(address=given.address, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    sizes = {"past": given.past, "horizon": given.horizon, "rank": given.rank}
    rows = [
        {"first": first, "count": min(given.block, given.series - first)}
        for first in range(0, given.series, given.block)
    ]
    blocks = ray.data.from_items(rows, override_num_blocks=len(rows))
    fitted = blocks.map(partial(fit, time=given.time, sizes=sizes, die=given.die)).materialize()
    answers = fitted.map(partial(predict, time=given.time)).take_all()
    forecasts = [each for row in answers for each in row["forecasts"]]
    error = np.mean([row["error"] for row in answers])
    print(f"{len(forecasts)} series, {len(forecasts[0])} values ahead: mean squared error {error:.3f}")
    ray.shutdown()


if __name__ == "__main__":
    main()
