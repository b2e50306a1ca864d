"""A forecaster for each of many series, fitted as one batch: 17,520 values, 336 -> 96, rank 4, ridge "auto".

    python benchmarks/forecast_many.py --series 1000

Writes results/forecast/many.json. `cpu_seconds` are of all threads; the series are generated.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path

import numpy as np
import torch

from torchldr.forecast import LinearForecaster

RESULTS = Path(__file__).resolve().parents[1] / "results" / "forecast" / "many.json"
TIME, PAST, HORIZON, RANK = 17520, 336, 96, 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--series", type=int, default=1000)
    count = parser.parse_args().series
    generator, t = np.random.default_rng(0), np.arange(TIME)[:, None]
    noise = generator.standard_normal((TIME, count))
    for step in range(1, TIME):
        noise[step] += 0.9 * noise[step - 1]
    series = np.sin(2 * np.pi * t / 48 + generator.uniform(0, 6, count)) + 0.3 * noise
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    f = LinearForecaster(PAST, HORIZON, rank=RANK, per_channel=True).fit(series)
    facts = {
        "series": count,
        "values": TIME,
        "past": PAST,
        "horizon": HORIZON,
        "rank": f.rank_,
        "threads": torch.get_num_threads(),
        "wall_seconds": round(time.perf_counter() - wall, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "megabytes": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024),
    }
    print(facts, file=sys.stderr)
    RESULTS.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
