"""Files that unpack to much more than they should, or claim to: refused before it is read or allocated."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import tarfile
import tracemalloc
import zipfile

import numpy as np
import pytest

from torchldr_paper import data
from torchldr_paper.data import official, registry
from torchldr_paper.data.formats import largest

MANY = 60_000_000  # bytes: what a bomb holds here; a real one holds a hundred times as much
FEW = 35_000_000  # bytes that refusing it may take: a tar unpacks ten at a time


def refused(name, folder, match):
    tracemalloc.start()
    try:
        with pytest.raises(data.DataFileError, match=match) as caught:
            data.load(name, folder)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < FEW
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "victim", "more", "form"),
    [
        ("mnist", "train-images-idx3-ubyte", b"\0", ".gz"),
        ("mnist", "train-images-idx3-ubyte", b"\0", ".zip"),
        ("mnist", "train-images-idx3-ubyte", b"\0", ".tar.gz"),
        ("cifar10", "data_batch_2.bin", b"\0", ".gz"),
        ("small_norb", "smallnorb-5x46789x9x18x6x2x96x96-training-dat.mat", b"\0", ".gz"),
        ("small_norb", "smallnorb-5x46789x9x18x6x2x96x96-training-cat.mat", b"\0", ".gz"),
        ("rectangles", "rectangles_train.amat", b"0 " * 784 + b"0\n", ".zip"),
        ("rectangles", "rectangles_train.amat", b"0 ", ".gz"),
        ("rectangles", "rectangles_train.amat", b"# nothing" * 1000 + b"\n", ".gz"),
        ("rectangles", "rectangles_train.amat", b" " * 1000 + b"\n", ".gz"),
    ],
)
def test_more_behind_the_end(small, maker, put, tmp_path, name, victim, more, form):
    _, files = maker.files(small[name])
    files[victim] += more * (MANY // len(more))
    put(files, tmp_path, form, small[name].archives[0])
    message = refused(name, tmp_path, "too long|it is another file|cut short")
    assert victim in message


def test_a_table_with_too_many_columns(small, maker, put, tmp_path):
    _, files = maker.files(small["rectangles"])
    files["rectangles_train.amat"] = (b"1 " * 20_000 + b"\n") * (MANY // 40_000)
    put(files, tmp_path, ".gz")
    refused("rectangles", tmp_path, "not a table of 785 numbers a line, or cut short .its first has 20000")


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_a_long_name_in_a_tar(small, tmp_path, kind):
    info = tarfile.TarInfo("long")
    info.type, info.size = kind, MANY
    with gzip.open(tmp_path / "mnist.tar.gz", "wb", compresslevel=1) as stream:
        stream.write(info.tobuf() + bytes(MANY))
    refused("mnist", tmp_path, r"mnist\.tar\.gz: damaged .*a header of")


def test_a_zip_that_is_not_deflated(small, maker, tmp_path):
    """Such members are unpacked whole, however little is asked of them."""
    _, files = maker.files(small["mnist"])
    with zipfile.ZipFile(tmp_path / "mnist.zip", "w", zipfile.ZIP_BZIP2) as archive:
        for name, content in files.items():
            archive.writestr(name, content + bytes(MANY if "train-images" in name else 0))
    refused("mnist", tmp_path, r"mnist\.zip: .* is not deflated")


def npy(shape, content: bytes = b"", descr: str = "|u1", header: str | None = None) -> bytes:
    described = header or repr({"descr": descr, "fortran_order": False, "shape": shape})
    text = f"{described}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content


def write_npz(path, members):
    whole = {name: npy((4,), b"\0\1\0\1") for name in ("train_y", "test_y")}
    whole |= {name: npy((4, 4), bytes(16)) for name in ("train_x", "test_x")}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (whole | members).items():
            archive.writestr(f"{name}.npy", content)
    return path


HOSTILE = {
    "huge": npy((10**9, 10**9)),
    "overflow": npy((2**62, 2**62, 16)),
    "large": npy((4_000, 4_000), bytes(16)),
    "negative": npy((-4, -4), bytes(16)),
    "nested": npy(0, header="(" * 1000),
    "objects": npy((4, 4), b"cos\nsystem\n", "|O"),
    "dtype": npy((4, 4), bytes(16), "|x9"),
    "attribute": npy(0, header="[1, 2]"),
    "keys": npy(0, header="{1: 2}"),
    "version": b"\x93NUMPY\x09\x00" + bytes(100),
    "short": b"\x93NUM",
    "text": b"hello",
    "empty": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("array", ["train_x", "test_y", "classes", "image_shape"])
def test_arrays_that_are_not_what_they_claim(tmp_path, name, array):
    path = write_npz(tmp_path / "my.npz", {array: HOSTILE[name]})
    with pytest.raises(data.DataFileError, match=rf"my\.npz: array {array} cannot be read"):
        data.load(path)


def test_packed_files_of_ones_own_still_load(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"train_x": np.zeros((500, 49)), "test_x": rng.random((20, 49))}
    arrays |= {"train_y": np.arange(500) % 2, "test_y": np.arange(20) % 2}
    np.savez_compressed(tmp_path / "packed.npz", **arrays)
    np.savez(tmp_path / "plain.npz", **{k: np.asfortranarray(v) for k, v in arrays.items()})
    packed, plain = (data.load(tmp_path / f"{name}.npz") for name in ("packed", "plain"))
    assert packed.fingerprint == plain.fingerprint


def test_too_many_classes(tmp_path):
    path = write_npz(tmp_path / "my.npz", {"classes": npy((), (10**15).to_bytes(8, "little"), "<i8")})
    refused(str(path), None, "classes must be one integer from 2 to 1,000,000, got 1000000000000000")


def test_a_damaged_cache(small, maker, put, tmp_path, mutations, caplog):
    """It is noticed, or gives the same arrays."""
    put(maker.files(small["mnist"])[1], tmp_path, "")
    whole = data.load("mnist", tmp_path)
    kept, found = tmp_path / official.FOLDER / "mnist.npz", 0
    content = kept.read_bytes()
    key = str(np.load(kept)["key"])
    assert official.read_cache(kept, key) is not None
    for damaged in mutations(content, 200):
        kept.write_bytes(damaged)
        read = official.read_cache(kept, key)
        found += read is not None
        if read is not None:
            assert read[1] == whole.fingerprint
            np.testing.assert_array_equal(read[0].train_x, whole.train_x)
            np.testing.assert_array_equal(read[0].test_y, whole.test_y)
    assert found < 120


def test_what_a_file_may_hold():
    for spec in registry.DATASETS.values():
        for file in spec.files:
            assert largest(file.read, file.shape) > np.prod(file.shape)


def test_what_is_no_npz(tmp_path):
    (tmp_path / "my.npz").write_bytes(bz2.compress(json.dumps([0] * 1000).encode()))
    refused(tmp_path / "my.npz", None, "damaged or not a .npz file")
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    (tmp_path / "my.npz").write_bytes(buffer.getvalue())
    refused(tmp_path / "my.npz", None, "holds a single array")
