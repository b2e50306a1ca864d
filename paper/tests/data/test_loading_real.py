"""The owners' own files, where `$TORCHLDR_DATA` has them: counts and means that are known."""

from __future__ import annotations

import numpy as np
import pytest

from torchldr_paper import data


def load_official(name, real_data):
    present = {row.name: row for row in data.status(real_data)}
    if present[name].state != "official":
        pytest.skip(f"{name} is not in $TORCHLDR_DATA")
    return data.load(name, real_data, source="official")


@pytest.mark.parametrize(
    ("name", "mean", "deviation"),
    [
        ("mnist", 0.13066, 0.30811),
        pytest.param("cifar10", 0.47336, 0.25157, marks=pytest.mark.exhaustive),
        ("cifar10_grey", 0.47336, 0.23930),
        ("rectangles", 0.07544, 0.26411),
    ],
)
def test_counts_and_means(real_data, name, mean, deviation):
    loaded = load_official(name, real_data)
    pixels, _ = loaded.pixels()
    assert pixels.mean(dtype=np.float64) == pytest.approx(mean, abs=1e-5)
    assert pixels.std(dtype=np.float64) == pytest.approx(deviation, abs=1e-5)
    counts = np.bincount(loaded.test_y)
    assert len(counts) == loaded.classes
    if "cifar10" in name:
        assert set(counts) == {1000}


def test_the_rectangles_stand_in_is_like_the_official(real_data):
    official = load_official("rectangles", real_data)
    made = data.load("rectangles", real_data, source="stand-in")

    def sides(d):
        on = d.test_x[:, 0] > 0
        return on.any(axis=2).sum(axis=1), on.any(axis=1).sum(axis=1)

    counts = [np.histogram2d(*sides(d), bins=[np.arange(4, 30)] * 2)[0] for d in (official, made)]
    seen = sum(counts) > 0
    chi2 = (np.subtract(*counts)[seen] ** 2 / sum(counts)[seen]).sum()
    assert seen.sum() == 506
    assert abs(chi2 - 505) < 5 * np.sqrt(2 * 505)
    h, w = sides(official)
    np.testing.assert_array_equal(official.test_y, h > w)
    pixels = [d.pixels()[1].mean(axis=0) for d in (official, made)]
    np.testing.assert_allclose(*pixels, atol=0.012)


def test_stand_ins_from_real_digits(real_data):
    load_official("mnist", real_data)
    noise = data.load("mnist_noise_6", real_data, source="stand-in")
    assert (len(noise.train_y), len(noise.test_y)) == (12000, 2000)
    x = noise.pixels()[0]
    assert x[:, :, 0, 0].mean() == pytest.approx(0.5, abs=0.01)  # a corner has no digit: uniform


@pytest.mark.exhaustive  # 62,000 pictures, rotated one by one
def test_stand_ins_from_photographs(real_data):
    load_official("mnist", real_data)
    if not list((real_data / "backgrounds").glob("*.png")):
        pytest.skip("no photographs")
    bg_rot = data.load("mnist_bg_rot", real_data, source="stand-in")
    assert (len(bg_rot.train_y), len(bg_rot.test_y)) == (12000, 50000)
