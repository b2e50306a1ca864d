"""Fit and serve the forecasters of many series on Ray: one task for each block of series.

    pip install torchldr ray
    python examples/forecast_ray.py --series 1000           # a cluster on this machine, started and stopped
    python examples/forecast_ray.py --address HEAD:6379     # one that runs

Ray hands a block to another worker when one dies (`--die` kills one, to see it). A fitted forecaster is a few
kilobytes: it stays in Ray's store, and answers from there.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import ray

from torchldr.forecast import LinearForecaster

DAY = 48


def block(first: int, count: int, time: int) -> np.ndarray:
    """Stand-in for reading a part of the data: generated series (time, count)."""
    generator, t = np.random.default_rng(first), np.arange(time)[:, None]
    phases, noise = generator.uniform(0, 6, count), generator.standard_normal((time, count))
    for step in range(1, time):
        noise[step] += 0.9 * noise[step - 1]
    return np.sin(2 * np.pi * t / DAY + phases) + 0.3 * noise


def fit(first: int, count: int, time: int, sizes: dict[str, Any], die: str | None) -> tuple[Any, float]:
    """The forecasters of a block, and their error on the last tenth."""
    if die is not None and first == 0 and not Path(die).exists():
        Path(die).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    series = block(first, count, time)
    cut = int(0.9 * time)
    f = LinearForecaster(**sizes, per_channel=True).fit(series[:cut])
    return f, f.error(series[cut - f.past :])


def predict(fitted: tuple[LinearForecaster, float], recent: np.ndarray) -> np.ndarray:
    """Forecasts (horizon, count) from recent values (past, count)."""
    forecast: np.ndarray = fitted[0].predict(recent)
    return forecast


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
    sizes = {"past": given.past, "horizon": given.horizon, "rank": given.rank}
    blocks = [
        (first, min(given.block, given.series - first)) for first in range(0, given.series, given.block)
    ]
    fit_block, answer_block = ray.remote(max_retries=3)(fit), ray.remote(predict)
    fitted = [fit_block.remote(*each, given.time, sizes, given.die) for each in blocks]
    errors = [ray.get(each)[1] for each in fitted]
    forecasts = [
        answer_block.remote(found, block(*each, given.time)[-given.past :])
        for found, each in zip(fitted, blocks, strict=True)
    ]
    answer = np.concatenate(ray.get(forecasts), 1)
    print(
        f"{answer.shape[1]} series, {answer.shape[0]} values ahead: mean squared error {np.mean(errors):.3f}"
    )
    ray.shutdown()


if __name__ == "__main__":
    main()
