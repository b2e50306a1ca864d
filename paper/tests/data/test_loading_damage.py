"""Truncated, corrupt and wrong-shaped files: a clear error, and no cache of it."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from torchldr_paper import data
from torchldr_paper.data import official


def refused(name, folder, match):
    with pytest.raises(data.DataFileError, match=match) as caught:
        data.load(name, folder, source="official")
    assert not list(folder.rglob("*.npz"))
    assert not list(folder.rglob("*.tmp"))
    assert not (folder / official.FOLDER).exists()
    return str(caught.value)


@pytest.mark.parametrize("keep", [0, 3, 9, 100])
@pytest.mark.parametrize(
    ("name", "victim"),
    [
        ("mnist", "train-images-idx3-ubyte"),
        ("cifar10", "data_batch_2.bin"),
        ("small_norb", "smallnorb-5x46789x9x18x6x2x96x96-training-dat.mat"),
        ("rectangles", "rectangles_train.amat"),
    ],
)
def test_truncated(small, maker, put, tmp_path, name, victim, keep):
    _, files = maker.files(small[name])
    files[victim] = files[victim][:keep]
    put(files, tmp_path, "")
    message = refused(name, tmp_path, "truncated|cut short|incomplete")
    assert victim in message


@pytest.mark.parametrize("name", ["mnist", "cifar10", "small_norb"])
def test_too_long(small, maker, put, tmp_path, name):
    _, files = maker.files(small[name])
    files = {file: content + b"!" for file, content in files.items()}
    put(files, tmp_path, "")
    refused(name, tmp_path, "too long")


@pytest.mark.parametrize("form", [".gz", ".zip", ".tar", ".tar.gz"])
def test_a_container_cut_short(small, maker, put, tmp_path, form):
    spec = small["mnist"]
    _, files = maker.files(spec)
    put(files, tmp_path, form, "mnist")
    for file in tmp_path.glob(f"*{form}"):
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
    refused("mnist", tmp_path, "damaged or cut short|expected .* in it|truncated")


def test_a_corrupt_gzip(small, maker, put, tmp_path):
    _, files = maker.files(small["mnist"])
    put(files, tmp_path, ".gz")
    victim = tmp_path / "train-images-idx3-ubyte.gz"
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 0xFF
    victim.write_bytes(content)
    assert "train-images" in refused("mnist", tmp_path, "damaged or cut short")
    victim.write_bytes(b"<html>not found</html>")
    refused("mnist", tmp_path, "damaged or cut short")


def test_amat_cut_inside_gzip(small, maker, put, tmp_path):
    _, files = maker.files(small["rectangles"])
    put(files, tmp_path, "")
    path = tmp_path / "rectangles_test.amat"
    zipped = gzip.compress(path.read_bytes())
    path.unlink()
    (tmp_path / "rectangles_test.amat.gz").write_bytes(zipped[: len(zipped) // 2])
    refused("rectangles", tmp_path, "rectangles_test.amat.gz: damaged or cut short")


def test_an_archive_without_the_files(small, put, tmp_path):
    put({"mnist_train.amat": b"1 2 3"}, tmp_path, ".zip", "mnist")
    refused("mnist", tmp_path, r"mnist\.zip: expected train-images-idx3-ubyte.* found none")


def test_not_the_format(small, maker, put, tmp_path):
    _, files = maker.files(small["mnist"])
    put(files | {"t10k-labels-idx1-ubyte": b"hello world"}, tmp_path / "idx", "")
    refused("mnist", tmp_path / "idx", "t10k-labels.*not an idx file")
    _, files = maker.files(small["small_norb"])
    cat = "smallnorb-5x01235x9x18x6x2x96x96-testing-cat.mat"
    put(files | {cat: b"hello world, " * 9}, tmp_path / "norb", "")
    refused("small_norb", tmp_path / "norb", "testing-cat.*not a NORB matrix of int32")
    _, files = maker.files(small["rectangles"])
    for text in (b"\xff\xfe\x00", b"one two\n", b"1 2 3\n1 2\n", b"# nothing\n"):
        put(files | {"rectangles_test.amat": text}, tmp_path / "amat", "")
        refused("rectangles", tmp_path / "amat", "rectangles_test")


def test_wrong_shape(small, maker, put, tmp_path):
    _, files = maker.files(small["mnist"])
    files["train-images-idx3-ubyte"] = maker.idx(np.zeros((12, 27, 28)))
    put(files, tmp_path, "")
    refused("mnist", tmp_path, "expected 12 x 28 x 28 values, got 12 x 27 x 28")


@pytest.mark.parametrize(
    ("column", "value", "match"),
    [
        (-1, 2, "label 1 is not a whole number from 0 to 1"),
        (-1, 0.5, "label 1 is not a whole number"),
        (-1, -1, "label 1 is not a whole number"),
        (3, 7.5, r"pixels must lie in \[0, 1\], got 0 to 7.5"),
        (3, np.nan, "not finite"),
    ],
)
def test_values_out_of_range(small, maker, put, tmp_path, column, value, match):
    arrays, files = maker.files(small["rectangles"])
    rows = arrays["rectangles_train.amat"]
    rows[1, column] = value
    files["rectangles_train.amat"] = maker.amat(rows)
    put(files, tmp_path, "")
    refused("rectangles", tmp_path, match)


def test_a_header_that_claims_too_much_is_not_believed(small, maker, put, tmp_path):
    _, files = maker.files(small["mnist"])
    huge = bytes([0, 0, 8, 3]) + np.array([2**31 - 1] * 3, dtype=">i4").tobytes()
    put(files | {"train-images-idx3-ubyte": huge}, tmp_path, "")
    refused("mnist", tmp_path, "expected 12 x 28 x 28")
    _, files = maker.files(small["small_norb"])
    dat = "smallnorb-5x46789x9x18x6x2x96x96-training-dat.mat"
    head = np.array([0x1E3D4C55, 2**31], dtype="<u4").tobytes() + b"\xff" * 12
    put(files | {dat: head}, tmp_path / "norb", "")
    with pytest.raises(data.DataFileError, match="training-dat"):
        data.load("small_norb", tmp_path / "norb")
