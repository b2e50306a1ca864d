"""What `load`, `status` and `table` say: names, what is missing, and the standardisation."""

from __future__ import annotations

import numpy as np
import pytest

from torchldr_paper import data
from torchldr_paper.data import registry


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(ValueError, match=r"unknown dataset 'rectangle'\. Did you mean 'rectangles'"):
        data.load("rectangle")
    with pytest.raises(ValueError, match="Known: cifar10, "):
        data.load("zzz")


def test_wrong_arguments(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        data.load("rectangles", tmp_path / "nowhere")
    with pytest.raises(ValueError, match="source must be"):
        data.load("rectangles", source="real")
    with pytest.raises(ValueError, match="seed must be an integer from 0"):
        data.load("rectangles", seed=-1)
    with pytest.raises(TypeError):
        data.load("rectangles", seed=0.5)


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar10_grey", "norb", "small_norb"])
def test_absent_says_which_file_to_put_where_and_from_where(tmp_path, name):
    with pytest.raises(data.DatasetNotFoundError) as caught:
        data.load(name, tmp_path)
    message, spec = str(caught.value), registry.lookup(name)
    assert spec.downloads[0] in message
    assert str(tmp_path / spec.folders[0]) in message
    assert spec.addresses[0] in message
    assert "No recipe" in message


def test_absent_but_makeable_says_what_is_needed(tmp_path):
    with pytest.raises(data.DatasetNotFoundError, match=r"once there is MNIST\."):
        data.load("mnist_noise_1", tmp_path)
    with pytest.raises(data.DatasetNotFoundError) as caught:
        data.load("mnist_bg_rot", tmp_path)
    assert "MNIST and photographs" in str(caught.value)
    assert str(tmp_path / "backgrounds") in str(caught.value)


def test_official_may_be_insisted_on(tmp_path):
    with pytest.raises(data.DatasetNotFoundError, match=r"rectangles\.zip"):
        data.load("rectangles", tmp_path, source="official")


def test_an_incomplete_set_is_not_replaced_by_a_stand_in(small, maker, put, tmp_path):
    _, files = maker.files(small["rectangles"])
    del files["rectangles_test.amat"]
    put(files, tmp_path, "")
    with pytest.raises(data.DataFileError, match=r"1 of 2 files .* missing rectangles_test\.amat"):
        data.load("rectangles", tmp_path)
    assert data.load("rectangles", tmp_path, source="stand-in").source == "stand-in"
    status = {row.name: row for row in data.status(tmp_path)}
    assert status["rectangles"].state == "absent"
    assert "incomplete" in status["rectangles"].where


def test_an_incomplete_set_without_recipe_names_the_missing(small, maker, put, tmp_path):
    _, files = maker.files(small["norb"])
    put(dict(list(files.items())[:20]), tmp_path, "")
    with pytest.raises(data.DatasetNotFoundError, match=r"20 of 24 .* and 1 more"):
        data.load("norb", tmp_path)


def test_the_papers_table():
    assert data.table() == [
        {"dataset": "MNIST-bg-rot", "train": 12000, "test": 50000, "classes": 10},
        {"dataset": "MNIST-noise", "train": 12000, "test": 2000, "classes": 10},
        {"dataset": "CIFAR-10", "train": 50000, "test": 10000, "classes": 10},
        {"dataset": "NORB", "train": 291600, "test": 58320, "classes": 6},
        {"dataset": "Rectangles", "train": 1200, "test": 50000, "classes": 2},
    ]


def test_status(small, maker, put, tmp_path):
    before = {row.name: row for row in data.status(tmp_path)}
    assert list(before) == data.names()
    assert before["rectangles"].state == "stand-in"
    assert before["mnist_noise_4"].state == before["mnist"].state == "absent"
    assert "MNIST" in before["mnist_noise_4"].where
    put(maker.files(small["mnist"])[1], tmp_path / "mnist", ".gz")
    put(maker.files(small["cifar10"])[1], tmp_path / "cifar10", ".tar.gz", "cifar-10-binary")
    after = {row.name: row for row in data.status(tmp_path)}
    assert after["mnist"].state == "official"
    assert after["mnist"].where == str(tmp_path / "mnist")
    assert after["mnist_noise_4"].state == "stand-in"
    assert after["mnist_bg_rot"].state == "absent"
    assert after["cifar10_grey"].state == "official"


def test_no_place_of_a_machine_in_the_registry():
    for spec in registry.DATASETS.values():
        assert all(address.startswith("http") for address in spec.addresses)


def test_standardize_per_pixel_and_channel():
    rng = np.random.default_rng(0)
    train = rng.integers(0, 256, (3000, 2, 3, 4), dtype=np.uint8)
    test = rng.integers(0, 256, (50, 2, 3, 4), dtype=np.uint8)
    train[:, 1, 2, 3] = 51  # a pixel that never varies keeps the divisor 1
    a, b = data.standardize(train, test)
    x, y = train / 255, test / 255
    mean, deviation = x.mean(0), x.std(0)
    deviation[1, 2, 3] = 1
    np.testing.assert_allclose(a, (x - mean) / deviation, atol=2e-6)
    np.testing.assert_allclose(b, (y - mean) / deviation, atol=2e-6)
    assert a.dtype == b.dtype == np.float32
    np.testing.assert_allclose(a[:, 1, 2, 3], 0, atol=1e-7)


def test_standardize_leaves_its_input_alone():
    train = np.random.default_rng(0).random((20, 5), dtype=np.float32)
    before = train.copy()
    data.standardize(train)
    np.testing.assert_array_equal(train, before)


def test_a_constant_float_pixel_is_constant_in_spite_of_rounding():
    train = np.full((1001, 1), 0.1, dtype=np.float32)
    (result,) = data.standardize(train)
    assert np.abs(result).max() < 1e-6


def test_fingerprint_depends_on_values_types_and_shapes_alone():
    from torchldr_paper.data.dataset import Splits, fingerprint

    x, y = np.arange(12, dtype=np.float32).reshape(3, 1, 2, 2), np.array([0, 1, 0])
    base = fingerprint(Splits(x, y, x, y))
    assert fingerprint(Splits(x.astype(">f4"), y, np.asfortranarray(x), y)) == base
    assert fingerprint(Splits(x.reshape(3, 1, 1, 4), y, x, y)) != base
    assert fingerprint(Splits(x, y, x + 1, y)) != base
    assert fingerprint(Splits(x.astype(np.float64), y, x, y)) != base


def test_repr_is_short(tmp_path):
    text = repr(data.load("rectangles", tmp_path))
    assert text.startswith("Dataset('rectangles', stand-in, 1200 + 50000 images of 1x28x28")
    assert len(text) < 160
