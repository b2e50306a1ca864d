"""Linear forecasters side by side: test error, weights, int8 error and bytes, time to fit.

    python benchmarks/forecast_compare.py  # closed forms
    python benchmarks/forecast_compare.py --trained --data ETTh1 ETTh2  # 300 steps of Adam on all windows
    python benchmarks/forecast_compare.py --batches --data ETTh1 --past 336 --horizon 96  # ten epochs

Appends to results/forecast/compare.jsonl and leaves out what is there. Times are of this machine, one thread,
perhaps busy: compare them with each other. Errors are of standardised series, all windows of the test part.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from forecast_data import PERIODS, Series, load
from forecast_models import (
    FITS,
    DLinear,
    SparseTSF,
    Sums,
    dense_module,
    dense_ridge,
    low_rank_module,
    test_error,
    train,
    train_by_batches,
)
from torch import Tensor, nn

from torchldr import quantize_
from torchldr.forecast import LinearForecaster
from torchldr.forecast.weighted import FREE_UP_TO

LEDGER = Path(__file__).resolve().parents[1] / "results" / "forecast" / "compare.jsonl"
TRAINED = {"DLinear": DLinear, "SparseTSF": SparseTSF, "FITS": FITS}
STEPS, SEEDS = 300, range(5)
EPOCHS, RATES = 10, {"DLinear": 0.002, "SparseTSF": 0.02, "FITS": 0.002}  # by batches


class Naive(nn.Module):
    """The value one period (or several) before."""

    def __init__(self, past: int, horizon: int, period: int) -> None:
        super().__init__()
        self.index = past - period + torch.arange(horizon) % period

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self.index]


class Iterated(nn.Module):
    """A forecaster of one step, again and again."""

    def __init__(self, step: nn.Module, horizon: int) -> None:
        super().__init__()
        self.step, self.horizon = step, horizon

    def forward(self, x: Tensor) -> Tensor:
        past = x.shape[-1]
        both = torch.cat(
            (torch.eye(past), torch.zeros(past, self.horizon)), -1
        )  # linear: of the unit vectors
        for h in range(self.horizon):
            both[:, past + h] = self.step(both[:, h : past + h])[:, 0]
        return x @ both[:, past:]


def closed(
    series: Series, past: int, horizon: int
) -> Iterator[tuple[str, nn.Module, nn.Module | None, float]]:
    """Name, module, one for int8 where it is another, and seconds of each closed form."""
    values, period = series.part("train", past), PERIODS[series.name]
    if horizon >= 1 and past >= period:
        yield "seasonal naive", Naive(past, horizon, period), None, 0.0
    start = time.process_time()
    chosen = LinearForecaster(past, horizon).fit(values).ridge_
    search = time.process_time() - start

    def ours(ahead: int, rank: int | None) -> tuple[nn.Module, nn.Module | None, float]:
        start = time.process_time()
        f = LinearForecaster(past, ahead, rank=rank, ridge=chosen, holdout=0).fit(values)
        seconds = time.process_time() - start
        return f.module(), f.module(int8=True) if f.rank_ * past <= FREE_UP_TO else None, seconds

    module, _, seconds = ours(1, None)
    yield "iterated AR", Iterated(module, horizon), None, seconds
    for rank in (None, 8, 4, 3, 2):
        yield f"Toeplitz-like, {'exact' if rank is None else f'r = {rank}'}", *ours(horizon, rank)
    start = time.process_time()
    W, K = dense_ridge(values, past, horizon, chosen)
    yield "ridge", dense_module(W), None, time.process_time() - start
    for rank in (16, 4):
        start = time.process_time()
        yield f"low rank {rank}", low_rank_module(W, K, rank), None, time.process_time() - start
    print(f"  ridge {chosen:.2g}, found in {search:.1f} s", file=sys.stderr)


def trained(
    series: Series, past: int, horizon: int, name: str, seed: int, kept: dict[str, tuple[Sums, Sums, float]]
) -> tuple[nn.Module, float]:
    """The module and its seconds; `kept` has the sums over windows, which the seeds share."""
    torch.manual_seed(seed)
    start = time.process_time()
    model = TRAINED[name](past, horizon, PERIODS[series.name])
    if name not in kept:
        sums = [Sums(model, series.part(part, past), past, horizon) for part in ("train", "valid")]
        kept[name] = (sums[0], sums[1], time.process_time() - start)
        start = time.process_time()
    model = train(model, *kept[name][:2], STEPS)
    return model, time.process_time() - start + kept[name][2]


def by_batches(series: Series, past: int, horizon: int, name: str, seed: int) -> tuple[nn.Module, float]:
    torch.manual_seed(seed)
    start = time.process_time()
    model, parts = TRAINED[name](past, horizon, PERIODS[series.name]), ("train", "valid")
    values = [series.part(part, past) for part in parts]
    model = train_by_batches(model, *values, past, horizon, seed, RATES[name], EPOCHS)
    return model, time.process_time() - start


def row(
    series: Series,
    past: int,
    horizon: int,
    name: str,
    module: nn.Module,
    small: nn.Module | None,
    seconds: float,
) -> dict[str, Any]:
    test = series.part("test", past)
    weights = sum(p.numel() for p in module.parameters())
    rounded = quantize_(copy.deepcopy(small or module)) if weights else module
    state = rounded.state_dict().values()
    return {
        "data": series.name,
        "past": past,
        "horizon": horizon,
        "method": name,
        "error": test_error(module.eval(), test, past, horizon),
        "weights": weights,
        "int8_error": test_error(rounded.eval(), test, past, horizon),
        "int8_bytes": sum(t.nbytes for t in state) if weights else 0,
        "fit_seconds": round(seconds, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", nargs="+", default=list(PERIODS))
    parser.add_argument("--past", nargs="+", type=int, default=[336, 720])
    parser.add_argument("--horizon", nargs="+", type=int, default=[96, 192, 336, 720])
    parser.add_argument("--trained", action="store_true", help="the trained ones, five seeds each, instead")
    parser.add_argument("--batches", action="store_true", help="the trained ones by epochs of batches")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    LEDGER.parent.mkdir(parents=True, exist_ok=True)
    lines = LEDGER.read_text().splitlines() if LEDGER.exists() else []
    keys = ("data", "past", "horizon", "method", "seed")
    done = {tuple(json.loads(line).get(key) for key in keys) for line in lines}

    def keep(found: dict[str, Any]) -> None:
        with LEDGER.open("a") as stream:
            stream.write(json.dumps(found) + "\n")
        print(json.dumps(found), file=sys.stderr, flush=True)

    for past in arguments.past:
        for horizon in arguments.horizon:
            for series in map(load, arguments.data):
                name = series.name
                shortest = min(len(series.part(part, past)) for part in ("valid", "test"))
                if shortest < past + horizon or series.train < 2 * (past + horizon):
                    continue
                if arguments.trained or arguments.batches:
                    kept: dict[str, tuple[Sums, Sums, float]] = {}
                    for seed, method in itertools.product(SEEDS, TRAINED):
                        title = f"{method}, batches" if arguments.batches else method
                        if (name, past, horizon, title, seed) in done:
                            continue
                        size = (series, past, horizon, method, seed)
                        model, seconds = by_batches(*size) if arguments.batches else trained(*size, kept)
                        found = row(series, past, horizon, title, model, None, seconds)
                        keep({**found, "seed": seed})
                elif (name, past, horizon, "low rank 4", None) not in done:
                    for each in closed(series, past, horizon):
                        keep(row(series, past, horizon, *each))


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    main()
