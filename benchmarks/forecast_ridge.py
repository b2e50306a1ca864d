"""LinearForecaster beside scikit-learn's Ridge on windows: time and memory against the length of the past.

    python benchmarks/forecast_ridge.py                   # or a part: --past 512 2048 --values 20000

Writes results/forecast/ridge.json, a case at a time. Each case runs in a process of its own, one thread;
`seconds` are of the processor, the least of the repeats, `megabytes` the peak above the start. Ridge is left
out where its windows would take more than --limit megabytes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).resolve().parents[1] / "results" / "forecast" / "ridge.json"
PASTS, RIDGE = (512, 1024, 2048, 4096, 8192, 16384), 1e-3
# Values, horizon: what Ridge can hold (--limit 3000 with the longest past), and a long series.
SIZES = ((20_000, 96), (40_000, 96), (200_000, 1024))


def series(time_steps: int) -> np.ndarray:
    """An autoregression and a weekly sine, standardised."""
    noise = np.random.default_rng(0).standard_normal(time_steps + 500)
    x = np.zeros_like(noise)
    for t in range(2, len(x)):
        x[t] = 1.5 * x[t - 1] - 0.6 * x[t - 2] + noise[t]
    x = x[500:] / x.std() + np.sin(2 * np.pi * np.arange(time_steps) / 168)
    return (x - x.mean()) / x.std()


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def ours(z: np.ndarray, past: int, horizon: int, rank: int | None) -> Any:
    from torchldr.forecast import LinearForecaster

    f = LinearForecaster(past, horizon, rank=rank, ridge=RIDGE, holdout=0, center=None)
    return f.fit(z).predict(z[:past])


def theirs(z: np.ndarray, past: int, horizon: int, rank: int | None) -> Any:
    from sklearn.linear_model import Ridge

    windows = np.lib.stride_tricks.sliding_window_view(z, past + horizon)
    model = Ridge(alpha=RIDGE * len(windows), fit_intercept=False, solver="cholesky")
    return model.fit(windows[:, :past], windows[:, past:]).predict(z[None, :past])[0]


def case(method: str, values: int, past: int, horizon: int, rank: int | None, repeats: int) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    z = series(values)
    function = theirs if method == "Ridge" else ours
    function(z[:500], 32, 8, None)  # imports, tables of FFTs
    before, seconds = peak(), []
    for _ in range(repeats):
        start = time.process_time()
        forecast = function(z, past, horizon, rank)
        seconds.append(time.process_time() - start)
    return {
        "method": method,
        "values": values,
        "past": past,
        "horizon": horizon,
        "rank": rank,
        "seconds": round(min(seconds), 3),
        "megabytes": round(peak() - before),
        "forecast": [float(x) for x in forecast[:3]],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--limit", type=float, default=1000)
    parser.add_argument("--past", nargs="+", type=int, default=PASTS)
    parser.add_argument("--values", nargs="+", type=int, default=[values for values, _ in SIZES])
    parser.add_argument("--case", help="one case, as JSON, in this process")
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(case(**json.loads(arguments.case))))
        return
    cases = [
        (method, values, past, horizon, rank)
        for values, horizon in SIZES
        for past in arguments.past
        for method, rank in (("torchldr", None), ("torchldr", 8), ("Ridge", None))
        if values in arguments.values and 2 * past <= values and (values != 40_000 or past == 16_384)
        if method != "Ridge" or (values - past) * past * 8 / 2**20 < arguments.limit
    ]
    names = ("method", "values", "past", "horizon", "rank")
    kept = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    rows = {tuple(row[name] for name in names): row for row in kept}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    for each in cases:
        facts = json.dumps({**dict(zip(names, each, strict=True)), "repeats": arguments.repeats})
        command = [sys.executable, __file__, "--case", facts]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        rows[each] = json.loads(ran.stdout.splitlines()[-1])
        print(rows[each], file=sys.stderr, flush=True)
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        order = sorted(rows, key=lambda key: (key[1], key[2], key[0], key[4] or 0))
        content = {"threads": 1, "ridge": RIDGE, "rows": [rows[key] for key in order]}
        RESULTS.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
