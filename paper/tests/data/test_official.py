"""Every dataset from small files in its owner's format, in every kind of container."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from torchldr_paper import data
from torchldr_paper.data import official, registry

NAMES = registry.names()
FORMS = ["", ".gz", ".zip", ".tar", ".tar.gz", ".tgz"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "name", ["mnist", "rectangles", "mnist_noise_3", "mnist_bg_rot", "cifar10", "small_norb"]
)
def test_every_container_gives_the_same_data(small, maker, put, tmp_path, name, form):
    spec = small[name]
    _, files = maker.files(spec)
    put(files, tmp_path / "plain" / spec.folders[0], "")
    put(files, tmp_path / "packed" / spec.folders[0], form, spec.archives[0])
    plain = data.load(name, tmp_path / "plain")
    packed = data.load(name, tmp_path / "packed")
    assert plain.fingerprint == packed.fingerprint
    assert packed.source == "official"


@pytest.mark.parametrize("name", NAMES)
def test_shapes_types_and_labels(small, maker, put, tmp_path, name):
    spec = small[name]
    put(maker.files(spec)[1], tmp_path, "")
    loaded = data.load(name, tmp_path)
    assert loaded.name == name
    assert loaded.train_x.shape == (spec.train, *spec.image_shape)
    assert loaded.test_x.shape == (spec.test, *spec.image_shape)
    assert loaded.train_y.dtype == np.int64
    assert loaded.train_x.dtype in (np.uint8, np.float32)
    train, test = loaded.pixels(flat=True)
    assert train.dtype == np.float32
    assert train.shape == (spec.train, loaded.features)
    assert 0 <= min(train.min(), test.min()) <= max(train.max(), test.max()) <= 1


def test_gzipped_files_inside_an_archive(small, maker, put, tmp_path):
    spec = small["mnist"]
    _, files = maker.files(spec)
    zipped = {f"{name}.gz": gzip.compress(content) for name, content in files.items()}
    put(files, tmp_path / "plain", "")
    put(zipped, tmp_path / "packed", ".tar", "mnist")
    a, b = data.load("mnist", tmp_path / "plain"), data.load("mnist", tmp_path / "packed")
    assert a.fingerprint == b.fingerprint


def test_mnist_values(small, maker, put, tmp_path):
    arrays, files = maker.files(small["mnist"])
    put(files, tmp_path / "MNIST" / "raw", "")
    loaded = data.load("mnist", tmp_path)
    np.testing.assert_array_equal(loaded.train_x[:, 0], arrays["train-images-idx3-ubyte"])
    np.testing.assert_array_equal(loaded.test_y, arrays["t10k-labels-idx1-ubyte"])


def test_rectangles_are_kept_as_bytes(small, maker, put, tmp_path):
    arrays, files = maker.files(small["rectangles"])
    put(files, tmp_path, "")
    loaded = data.load("rectangles", tmp_path)
    assert loaded.train_x.dtype == np.uint8
    rows = arrays["rectangles_train.amat"]
    np.testing.assert_array_equal(loaded.pixels(flat=True)[0], rows[:, :-1])
    np.testing.assert_array_equal(loaded.train_y, rows[:, -1])


def test_noise_images_are_stored_by_columns_and_the_last_rows_are_the_test(small, maker, put, tmp_path):
    spec = small["mnist_noise_2"]
    arrays, files = maker.files(spec)
    put(files, tmp_path, "")
    loaded = data.load("mnist_noise_2", tmp_path)
    rows = arrays["mnist_noise_variations_all_2.amat"]
    image = rows[0, :-1].reshape(28, 28).T
    np.testing.assert_allclose(loaded.train_x[0, 0], image, rtol=1e-6)
    np.testing.assert_array_equal(loaded.test_y, rows[-spec.test :, -1])


def test_cifar_layout_and_grey(small, maker, put, tmp_path):
    arrays, files = maker.files(small["cifar10"])
    put(files, tmp_path / "cifar-10-batches-bin", "")
    colour, grey = data.load("cifar10", tmp_path), data.load("cifar10_grey", tmp_path)
    row = arrays["data_batch_1.bin"][1]
    np.testing.assert_array_equal(colour.train_x[1].ravel(), row[1:])
    assert colour.train_y[1] == row[0]
    expected = row[1:].reshape(3, 32, 32).mean(axis=0) / 255
    np.testing.assert_allclose(grey.train_x[1, 0], expected, rtol=1e-6)
    assert grey.image_shape == (1, 32, 32)


@pytest.mark.parametrize(("name", "size"), [("norb", 108), ("small_norb", 96)])
def test_norb_takes_the_left_image_averaged_over_areas(small, maker, put, tmp_path, name, size):
    spec = small[name]
    arrays, files = maker.files(spec)
    put(files, tmp_path, ".gz")
    loaded = data.load(name, tmp_path)
    left = next(iter(arrays.values()))[:, 0].astype(float)
    # The oracle repeats pixels until both grids fit, then takes plain means.
    fine = left.repeat(32, axis=1).repeat(32, axis=2)[0]
    expected = fine.reshape(32, size, 32, size).mean(axis=(1, 3))
    np.testing.assert_allclose(loaded.train_x[0, 0], expected, atol=0.51)
    assert loaded.classes == {"norb": 6, "small_norb": 5}[name]


def test_norb_test_files_under_the_training_instances_name(small, maker, put, tmp_path):
    _, files = maker.files(small["norb"])
    renamed = {n.replace("01235", "46789") if "testing" in n else n: c for n, c in files.items()}
    put(renamed, tmp_path / "norb", "")
    assert data.load("norb", tmp_path).test_x.shape[0] == small["norb"].test


def test_parsed_once_and_again_when_a_file_changes(small, maker, put, tmp_path, monkeypatch):
    spec = small["mnist"]
    put(maker.files(spec)[1], tmp_path / "mnist", "")
    first = data.load("mnist", tmp_path)
    kept = tmp_path / official.FOLDER / "mnist.npz"
    assert kept.is_file()

    def fail(*args, **kwargs):
        raise AssertionError("parsed although it was cached")

    with monkeypatch.context() as patch:
        patch.setattr("torchldr_paper.data.official.read_files", fail)
        again = data.load("mnist", tmp_path)
    assert again.fingerprint == first.fingerprint
    np.testing.assert_array_equal(again.train_x, first.train_x)

    put(maker.files(spec)[1], tmp_path / "mnist", "")
    for file in (tmp_path / "mnist").iterdir():
        os.utime(file, ns=(0, 10**9))
    assert data.load("mnist", tmp_path).fingerprint != first.fingerprint


@pytest.mark.parametrize("damage", ["empty", "cut", "garbage", "flipped"])
def test_a_damaged_cache_is_made_anew(small, maker, put, tmp_path, damage):
    put(maker.files(small["mnist"])[1], tmp_path, "")
    first = data.load("mnist", tmp_path)
    kept = tmp_path / official.FOLDER / "mnist.npz"
    content = bytearray(kept.read_bytes())
    if damage == "flipped":
        content[len(content) // 3] ^= 0xFF
    new = {"empty": b"", "cut": content[:-500], "garbage": b"x" * 999, "flipped": content}[damage]
    kept.write_bytes(new)
    again = data.load("mnist", tmp_path)
    assert again.fingerprint == first.fingerprint
    np.testing.assert_array_equal(again.train_x, first.train_x)


def test_a_data_folder_that_cannot_be_written_to(small, maker, put, tmp_path, user_cache):
    put(maker.files(small["mnist"])[1], tmp_path, "")
    # A plain file in the folder's place stops even root from writing there.
    (tmp_path / official.FOLDER).write_text("")
    first = data.load("mnist", tmp_path)
    kept = list(user_cache.rglob("mnist.npz"))
    assert len(kept) == 1
    assert data.load("mnist", tmp_path).fingerprint == first.fingerprint


def test_nowhere_to_keep_it_is_no_failure(small, maker, put, tmp_path, user_cache, caplog):
    put(maker.files(small["mnist"])[1], tmp_path, "")
    (tmp_path / official.FOLDER).write_text("")
    user_cache.parent.mkdir()
    user_cache.write_text("")
    assert data.load("mnist", tmp_path).source == "official"
    assert "could not be kept" in caplog.text


def test_an_interrupted_write_leaves_nothing(small, maker, put, tmp_path, monkeypatch):
    put(maker.files(small["mnist"])[1], tmp_path, "")

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        data.load("mnist", tmp_path)
    assert list((tmp_path / official.FOLDER).iterdir()) == []


def test_checksums_are_verified_where_known(small, maker, put, tmp_path):
    spec = small["mnist"]
    _, files = maker.files(spec)
    put(files, tmp_path, ".gz")
    digests = {name: hashlib.md5(content).hexdigest() for name, content in files.items()}
    small["mnist"] = dataclasses.replace(spec, checksums=digests)
    assert data.load("mnist", tmp_path).source == "official"

    other = digests | {"t10k-labels-idx1-ubyte": "0" * 32}
    small["mnist"] = dataclasses.replace(spec, checksums=other)
    (tmp_path / official.FOLDER / "mnist.npz").unlink()
    with pytest.raises(data.DataFileError, match=r"t10k-labels.*md5 is .* expected 0000"):
        data.load("mnist", tmp_path)
    assert not (tmp_path / official.FOLDER).exists() or not list((tmp_path / official.FOLDER).iterdir())
    loaded = data.load("mnist", tmp_path, verify=False)
    assert loaded.source == "official"
    assert loaded.origin.endswith("(checksums not verified)")


def test_an_archive_is_held_against_its_own_checksum(small, maker, put, tmp_path):
    spec = small["rectangles"]
    put(maker.files(spec)[1], tmp_path, ".zip", "rectangles")
    archive = tmp_path / "rectangles.zip"
    right = {"rectangles.zip": hashlib.sha1(archive.read_bytes()).hexdigest()}
    small["rectangles"] = dataclasses.replace(spec, checksums=right)
    assert data.load("rectangles", tmp_path).source == "official"
    small["rectangles"] = dataclasses.replace(spec, checksums={"rectangles.zip": "1" * 40})
    os.utime(archive, ns=(0, 0))
    with pytest.raises(data.DataFileError, match=r"rectangles\.zip: sha1 is"):
        data.load("rectangles", tmp_path)


def test_every_download_has_a_known_checksum():
    for spec in registry.DATASETS.values():
        for file in spec.downloads:
            assert len(spec.checksums[file]) in (32, 40), file


def test_search_order(small, maker, put, tmp_path, monkeypatch, user_cache):
    spec = small["mnist"]
    folders = [tmp_path / "explicit", tmp_path / "variable", user_cache]
    for folder in folders:
        put(maker.files(spec)[1], folder / "mnist", "")
    monkeypatch.setenv("TORCHLDR_DATA", str(folders[1]))
    explicit = data.load("mnist", folders[0])
    variable = data.load("mnist")
    monkeypatch.delenv("TORCHLDR_DATA")
    cached = data.load("mnist")
    origins = [Path(d.origin).parent for d in (explicit, variable, cached)]
    assert origins == folders
    assert len({d.fingerprint for d in (explicit, variable, cached)}) == 3


def test_a_later_place_serves_where_an_earlier_has_nothing(small, maker, put, tmp_path, user_cache):
    put(maker.files(small["mnist"])[1], user_cache, "")
    (tmp_path / "empty").mkdir()
    assert Path(data.load("mnist", tmp_path / "empty").origin) == user_cache
