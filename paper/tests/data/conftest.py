"""Small datasets in the owners' formats, written here, and an environment without a user's data."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from torchldr_paper.data import formats, loading, registry
from torchldr_paper.data.dataset import Array
from torchldr_paper.data.registry import Spec

REAL_DATA = os.environ.get("TORCHLDR_DATA")
NOISE_TEST = 4


@pytest.fixture
def real_data() -> Path:
    """The folder of real data that the environment names; a test that needs it is else skipped."""
    if not REAL_DATA or not Path(REAL_DATA).is_dir():
        pytest.skip("needs real data: $TORCHLDR_DATA")
    return Path(REAL_DATA)


@pytest.fixture(autouse=True)
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of the user's, and no `$TORCHLDR_DATA`."""
    monkeypatch.delenv("TORCHLDR_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    return tmp_path / "xdg" / "torchldr"


class Maker:
    """Random content for a dataset's official files, as arrays and as bytes."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)

    def idx(self, array: Array) -> bytes:
        head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">i4").tobytes()
        return head + array.astype(np.uint8).tobytes()

    def amat(self, rows: Array) -> bytes:
        text = io.StringIO()
        np.savetxt(text, rows, fmt="%15.7e")
        return text.getvalue().encode()

    def norb(self, array: Array) -> bytes:
        magic = 0x1E3D4C55 if array.dtype == np.uint8 else 0x1E3D4C54
        sizes = (*array.shape, 1, 1)[: max(3, array.ndim)]
        head = np.array([magic, array.ndim], dtype="<u4").tobytes()
        return head + np.array(sizes, dtype="<i4").tobytes() + array.tobytes()

    def array(self, name: str, shape: tuple[int, ...], classes: int) -> Array:
        """What a file of that name and shape may hold."""
        bytes_ = self.rng.integers(0, 256, shape, dtype=np.uint8)
        labels = self.rng.integers(0, classes, shape[0])
        if name.endswith(".amat"):
            pixels = self.rng.integers(0, 2, (shape[0], 784))
            if "rectangles" not in name:
                pixels = pixels * self.rng.random(pixels.shape).astype(np.float32)
            return np.column_stack([pixels, labels]).astype(np.float32)
        if name.endswith(".bin"):
            bytes_[:, 0] = labels
            return bytes_
        if "-cat" in name:
            return labels.astype("<i4")
        return labels.astype(np.uint8) if len(shape) == 1 else bytes_

    def payload(self, name: str, array: Array) -> bytes:
        if name.endswith(".amat"):
            return self.amat(array)
        if name.endswith(".mat"):
            return self.norb(array)
        return array.tobytes() if name.endswith(".bin") else self.idx(array)

    def files(self, spec: Spec) -> tuple[dict[str, Array], dict[str, bytes]]:
        """The arrays and the bytes of all of a dataset's files, by name."""
        arrays = {f.name: self.array(f.name, f.shape, spec.classes) for f in spec.files}
        return arrays, {name: self.payload(name, array) for name, array in arrays.items()}


@pytest.fixture
def maker() -> Maker:
    return Maker()


def put(files: dict[str, bytes], folder: Path, form: str, stem: str = "") -> None:
    """Write files plainly, gzipped, or into an archive of the given name."""
    folder.mkdir(parents=True, exist_ok=True)
    if form in ("", ".gz"):
        for name, data in files.items():
            (folder / (name + form)).write_bytes(gzip.compress(data, 1) if form else data)
    elif form == ".zip":
        with zipfile.ZipFile(folder / (stem + form), "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, data in files.items():
                archive.writestr(f"inside/{name}", data)
    else:
        level = {} if form == ".tar" else {"compresslevel": 1}
        with tarfile.open(folder / (stem + form), "w:gz" if level else "w", **level) as tar:
            for name, data in files.items():
                info = tarfile.TarInfo(f"inside/{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


@pytest.fixture(name="put")
def put_fixture() -> Callable[..., None]:
    return put


def shrink(spec: Spec) -> Spec:
    """The same dataset with a few images and no known checksum."""
    rows = {"train": 5, "test": 3, "t10k": 3, "noise": 6 + NOISE_TEST, "batch": 2}

    def fewer(name: str) -> int:
        key = next((key for key in ("noise", "batch", "test", "t10k") if key in name), "train")
        return rows[key]

    files = tuple(dataclasses.replace(file, shape=(fewer(file.name), *file.shape[1:])) for file in spec.files)
    # Images are in files that have labels of their own beside them for idx and NORB.
    held = [f for f in files if "-cat" not in f.name and "labels" not in f.name]
    is_test = [("test" in f.name or "t10k" in f.name) for f in held]
    train = sum(f.shape[0] for f, test in zip(held, is_test, strict=True) if not test)
    test = sum(f.shape[0] for f, test in zip(held, is_test, strict=True) if test)
    change: dict[str, object] = {"files": files, "train": train, "test": test, "checksums": {}}
    if spec.recipe == "noise":
        change |= {"train": train - NOISE_TEST, "test": NOISE_TEST}
        change["assemble"] = functools.partial(formats.mnist_noise, test=NOISE_TEST)
    if spec.recipe == "bg_rot":
        change |= {"train": 4, "test": 3}
        change["files"] = tuple(
            dataclasses.replace(file, shape=(count, 785)) for file, count in zip(files, (4, 3), strict=True)
        )
    return dataclasses.replace(spec, **change)  # type: ignore[arg-type]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> dict[str, Spec]:
    """A registry of small datasets in the place of the real one; entries may be replaced."""
    specs = {name: shrink(spec) for name, spec in registry.DATASETS.items()}
    # MNIST must have digits enough for the stand-ins that are made from it.
    mnist = specs["mnist"]
    counts = (12, 12, 6, 6)
    files = tuple(
        dataclasses.replace(file, shape=(count, *file.shape[1:]))
        for file, count in zip(mnist.files, counts, strict=True)
    )
    specs["mnist"] = dataclasses.replace(mnist, files=files, train=12, test=6)
    monkeypatch.setattr(registry, "DATASETS", specs)
    monkeypatch.setattr(loading, "DATASETS", specs)
    return specs
