"""What is known about each dataset: its files, its size, its owner's address.

The registry holds facts only; `official` reads the files, `recipes` makes the stand-ins.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from torchldr_paper.data import assemble, formats
from torchldr_paper.data.checksums import CHECKSUMS
from torchldr_paper.data.dataset import Array, Splits
from torchldr_paper.data.formats import Reader, Shape
from torchldr_paper.names import unknown

Recipe = Literal["rectangles", "noise", "bg_rot"]


@dataclass(frozen=True)
class OfficialFile:
    """One file as its owner publishes it.

    Attributes:
        name: the name of the uncompressed file.
        shape: what its header must announce, or how it is laid out where there is none.
        read: the reader of its format.
        aliases: other names under which it is met.
    """

    name: str
    shape: Shape
    read: Reader
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Spec:
    """One dataset.

    Attributes:
        name: what a user types.
        title: what the paper calls it.
        train, test, classes: the paper's table.
        image_shape: (channels, height, width).
        files: the official files, all of which are needed.
        assemble: from the parsed files, in the order of `files`, to the four arrays.
        folders: where in a data folder the files may lie, the first is where `fetch` puts them.
        archives: names, without suffix, of .zip, .tar, .tar.gz or .tgz files that hold the files.
        downloads: names of the files to download, each with its address being `address + name`.
        addresses: the owner's address, then copies of it.
        recipe: how a stand-in is made, where that is known.
        level: the level of noise, 1 to 6.
        in_paper: whether the paper's table of datasets has it.
        checksums: known checksums by file name.
    """

    name: str
    title: str
    train: int
    test: int
    classes: int
    image_shape: tuple[int, int, int]
    files: tuple[OfficialFile, ...]
    assemble: Callable[[list[Array]], Splits]
    folders: tuple[str, ...]
    archives: tuple[str, ...]
    downloads: tuple[str, ...]
    addresses: tuple[str, ...]
    recipe: Recipe | None = None
    level: int = 0
    in_paper: bool = True
    checksums: Mapping[str, str] = field(default_factory=lambda: CHECKSUMS)


_ICML = ("http://www.iro.umontreal.ca/~lisa/icml2007data/",)
_GREY28 = (1, 28, 28)


def _amat(name: str, rows: int) -> OfficialFile:
    return OfficialFile(name, (rows, 785), formats.read_amat)


def _mnist() -> Spec:
    def file(name: str, shape: Shape) -> OfficialFile:
        # Some copies have a dot before "idx".
        dotted = name.replace("-idx", ".idx")
        return OfficialFile(name, shape, formats.read_idx, (dotted,))

    files = (
        file("train-images-idx3-ubyte", (60000, 28, 28)),
        file("train-labels-idx1-ubyte", (60000,)),
        file("t10k-images-idx3-ubyte", (10000, 28, 28)),
        file("t10k-labels-idx1-ubyte", (10000,)),
    )
    return Spec(
        name="mnist",
        title="MNIST",
        train=60000,
        test=10000,
        classes=10,
        image_shape=_GREY28,
        files=files,
        assemble=assemble.mnist,
        folders=("mnist", "MNIST/raw", "."),
        archives=("mnist",),
        downloads=tuple(f"{file.name}.gz" for file in files),
        addresses=(
            "http://yann.lecun.com/exdb/mnist/",
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
        ),
        in_paper=False,
    )


def _rectangles() -> Spec:
    return Spec(
        name="rectangles",
        title="Rectangles",
        train=1200,
        test=50000,
        classes=2,
        image_shape=_GREY28,
        files=(_amat("rectangles_train.amat", 1200), _amat("rectangles_test.amat", 50000)),
        assemble=assemble.rectangles,
        folders=("rectangles", "."),
        archives=("rectangles",),
        downloads=("rectangles.zip",),
        addresses=_ICML,
        recipe="rectangles",
    )


def _mnist_bg_rot() -> Spec:
    stem = "mnist_all_background_images_rotation_normalized"
    return Spec(
        name="mnist_bg_rot",
        title="MNIST-bg-rot",
        train=12000,
        test=50000,
        classes=10,
        image_shape=_GREY28,
        files=(_amat(f"{stem}_train_valid.amat", 12000), _amat(f"{stem}_test.amat", 50000)),
        assemble=assemble.amat_pair,
        folders=("mnist_bg_rot", "."),
        archives=("mnist_rotation_back_image_new",),
        downloads=("mnist_rotation_back_image_new.zip",),
        addresses=_ICML,
        recipe="bg_rot",
    )


def _mnist_noise(level: int) -> Spec:
    return Spec(
        name=f"mnist_noise_{level}",
        title=f"MNIST-noise, level {level}",
        train=12000,
        test=2000,
        classes=10,
        image_shape=_GREY28,
        files=(_amat(f"mnist_noise_variations_all_{level}.amat", 14000),),
        assemble=assemble.mnist_noise,
        folders=("mnist_noise", "."),
        archives=("mnist_noise_variation",),
        downloads=("mnist_noise_variation.tar.gz",),
        addresses=_ICML,
        recipe="noise",
        level=level,
    )


def _cifar10(grey: bool) -> Spec:
    names = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
    return Spec(
        name="cifar10_grey" if grey else "cifar10",
        title="CIFAR-10, grey" if grey else "CIFAR-10",
        train=50000,
        test=10000,
        classes=10,
        image_shape=(1, 32, 32) if grey else (3, 32, 32),
        files=tuple(OfficialFile(name, (10000, 3073), formats.read_cifar) for name in names),
        assemble=assemble.cifar10_grey if grey else assemble.cifar10,
        folders=("cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin", "."),
        archives=("cifar-10-binary",),
        downloads=("cifar-10-binary.tar.gz",),
        addresses=("https://www.cs.toronto.edu/~kriz/",),
    )


def _norb() -> Spec:
    stem = "norb-5x{}x9x18x6x2x108x108-{}-{:02}"
    parts: list[tuple[str, tuple[str, ...]]] = [
        (stem.format("46789", "training", i), ()) for i in range(1, 11)
    ]
    # The owner's test files carry the test instances; they are also quoted with the training ones.
    parts += [(stem.format("01235", "testing", i), (stem.format("46789", "testing", i),)) for i in (1, 2)]
    files = [
        OfficialFile(f"{part}-{kind}.mat", shape, read, tuple(f"{alias}-{kind}.mat" for alias in aliases))
        for part, aliases in parts
        for kind, shape, read in (
            ("dat", (29160, 2, 108, 108), formats.read_norb_left),
            ("cat", (29160,), formats.read_norb_labels),
        )
    ]
    return Spec(
        name="norb",
        title="NORB",
        train=291600,
        test=58320,
        classes=6,
        image_shape=(1, formats.NORB_SIZE, formats.NORB_SIZE),
        files=tuple(files),
        assemble=assemble.norb,
        folders=("norb", "."),
        archives=("norb",),
        downloads=tuple(f"{file.name}.gz" for file in files),
        addresses=("https://cs.nyu.edu/~ylclab/data/norb-v1.0/",),
    )


def _small_norb() -> Spec:
    files = [
        OfficialFile(f"smallnorb-5x{part}-{kind}.mat", shape, read)
        for part in ("46789x9x18x6x2x96x96-training", "01235x9x18x6x2x96x96-testing")
        for kind, shape, read in (
            ("dat", (24300, 2, 96, 96), formats.read_norb_left),
            ("cat", (24300,), formats.read_norb_labels),
        )
    ]
    return Spec(
        name="small_norb",
        title="small NORB",
        train=24300,
        test=24300,
        classes=5,
        image_shape=(1, formats.NORB_SIZE, formats.NORB_SIZE),
        files=tuple(files),
        assemble=assemble.small_norb,
        folders=("small_norb", "smallnorb", "."),
        archives=("smallnorb", "small_norb"),
        downloads=tuple(f"{file.name}.gz" for file in files),
        addresses=("https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/",),
        in_paper=False,
    )


DATASETS: Mapping[str, Spec] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            _mnist_bg_rot(),
            *(_mnist_noise(level) for level in range(1, 7)),
            _cifar10(grey=False),
            _cifar10(grey=True),
            _norb(),
            _rectangles(),
            _mnist(),
            _small_norb(),
        )
    }
)


def largest_download(file: str) -> int:
    """Bytes that a file to download has at most: those of the official files in it, and some for packing."""
    inside = {
        official.name: formats.largest(official.read, official.shape)
        for spec in DATASETS.values()
        if file in spec.downloads
        for official in spec.files
    }
    size = inside.get(file.removesuffix(".gz"), sum(inside.values()))
    return size + size // 100 + (1 << 20)


def names() -> list[str]:
    """The names that `load` and `fetch` know, in the order of the paper's table."""
    return list(DATASETS)


def lookup(name: str) -> Spec:
    """The entry of a dataset by its name.

    Raises:
        ValueError: for an unknown name, with the nearest known one.
    """
    if name in DATASETS:
        return DATASETS[name]
    here = isinstance(name, str) and os.path.exists(name)
    own = "is read only from a .npz file" if here else "is named by the path of a .npz file"
    raise ValueError(f"{unknown('dataset', name, sorted(DATASETS))} Data of your own {own}.")
