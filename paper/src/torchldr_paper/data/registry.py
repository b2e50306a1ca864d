"""What is known about each dataset: its files, its size, its owner's address, published checksums.

The registry holds facts only; `official` reads the files, `recipes` makes the stand-ins. `checksums.txt` says
where checksums are from. A file is held against its own whatever it came in, so a gzip made by someone else
is fine; an archive's serves where none of its content is known.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from torchldr_paper.data import formats
from torchldr_paper.data.dataset import Array, Splits
from torchldr_paper.data.formats import Reader, Shape
from torchldr_paper.messages import unknown

_LINES = (resources.files(__package__) / "checksums.txt").read_text("utf-8").splitlines()

CHECKSUMS: Mapping[str, str] = MappingProxyType(
    {name: digest for digest, name in (line.split() for line in _LINES if not line.startswith("#"))}
)


def algorithm(digest: str) -> str:
    """The hash function of a hexadecimal digest, by its length."""
    return {32: "md5", 40: "sha1", 64: "sha256"}[len(digest)]


def file_digest(path: Path, like: str) -> str:
    """The digest of a file on disk, by the hash function of another digest."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm(like)).hexdigest()


Recipe = Literal["rectangles", "noise", "bg_rot"]


@dataclass(frozen=True)
class OfficialFile:
    """One file as its owner publishes it."""

    name: str  # the name of the uncompressed file
    shape: Shape  # what its header must announce, or how it is laid out where there is none
    read: Reader  # the reader of its format
    aliases: tuple[str, ...] = ()  # other names under which it is met


@dataclass(frozen=True)
class Facts:
    """What a dataset is, whatever its source; numbers are those of the paper's table."""

    name: str  # what a user types
    title: str  # what the paper calls it
    train: int  # images
    test: int
    classes: int
    image_shape: tuple[int, int, int]  # (channels, height, width)
    in_paper: bool = field(default=True, kw_only=True)  # whether that table has it


@dataclass(frozen=True)
class Spec(Facts):
    """One dataset."""

    files: tuple[OfficialFile, ...]  # the official files, all of which are needed
    assemble: Callable[[list[Array]], Splits]  # from the parsed files, in their order, to the four arrays
    folders: tuple[str, ...]  # where in a data folder the files may lie, the first is where `fetch` puts them
    archives: tuple[str, ...]  # names, without .zip, .tar, .tar.gz or .tgz, of what holds the files
    downloads: tuple[str, ...]  # names of the files to download, each with its address being `address + name`
    addresses: tuple[str, ...]  # the owner's address, then copies of it
    recipe: Recipe | None = None  # how a stand-in is made, where that is known
    level: int = 0  # the level of noise, 1 to 6
    checksums: Mapping[str, str] = field(default_factory=lambda: CHECKSUMS)  # known checksums by file name

    @property
    def facts(self) -> dict[str, Any]:
        """What a `Dataset` says of itself whatever its source."""
        return {"name": self.name, "image_shape": self.image_shape, "classes": self.classes}


_GREY28, _GREY32 = (1, 28, 28), (1, formats.NORB_SIZE, formats.NORB_SIZE)


def _icml(archive: str) -> dict[str, Any]:
    """The files of Larochelle et al. 2007, which come in archives."""
    address = "http://www.iro.umontreal.ca/~lisa/icml2007data/"
    return {"archives": (archive.split(".")[0],), "downloads": (archive,), "addresses": (address,)}


def _amat(*rows: tuple[str, int]) -> tuple[OfficialFile, ...]:
    return tuple(OfficialFile(f"{name}.amat", (count, 785), formats.read_amat) for name, count in rows)


def _single(files: tuple[OfficialFile, ...], *addresses: str) -> dict[str, Any]:
    """Files that are downloaded one by one, gzipped."""
    return {"downloads": tuple(f"{file.name}.gz" for file in files), "addresses": addresses}


def _norb_files(parts: Mapping[str, tuple[str, ...]], count: int, size: int) -> tuple[OfficialFile, ...]:
    """Images and labels of each part, which has other names too."""
    kinds = (
        ("dat", (count, 2, size, size), formats.read_norb_left),
        ("cat", (count,), formats.read_norb_labels),
    )
    return tuple(
        OfficialFile(f"{part}-{kind}.mat", shape, read, tuple(f"{alias}-{kind}.mat" for alias in aliases))
        for part, aliases in parts.items()
        for kind, shape, read in kinds
    )


_MNIST = tuple(
    # Some copies have a dot before "idx".
    OfficialFile(name, shape, formats.read_idx, (name.replace("-idx", ".idx"),))
    for part, count in (("train", 60000), ("t10k", 10000))
    for name, shape in (
        (f"{part}-images-idx3-ubyte", (count, 28, 28)),
        (f"{part}-labels-idx1-ubyte", (count,)),
    )
)
_CIFAR10 = tuple(
    OfficialFile(f"{name}.bin", (10000, 3073), formats.read_cifar)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
)
_CIFAR10_PLACES: dict[str, Any] = {
    "folders": ("cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin", "."),
    "archives": ("cifar-10-binary",),
    "downloads": ("cifar-10-binary.tar.gz",),
    "addresses": ("https://www.cs.toronto.edu/~kriz/",),
}
_NORB_PART = "norb-5x{}x9x18x6x2x108x108-{}-{:02}"
_NORB = _norb_files(
    {_NORB_PART.format("46789", "training", i): () for i in range(1, 11)}
    # The owner's test files carry the test instances; they are also quoted with the training ones.
    | {_NORB_PART.format("01235", "testing", i): (_NORB_PART.format("46789", "testing", i),) for i in (1, 2)},
    29160,
    108,
)
_SMALL_NORB = _norb_files(
    dict.fromkeys(
        ("smallnorb-5x46789x9x18x6x2x96x96-training", "smallnorb-5x01235x9x18x6x2x96x96-testing"), ()
    ),
    24300,
    96,
)
_BG_ROT = "mnist_all_background_images_rotation_normalized"

_SPECS = (
    Spec(
        "mnist_bg_rot", "MNIST-bg-rot", 12000, 50000, 10, _GREY28,
        _amat((f"{_BG_ROT}_train_valid", 12000), (f"{_BG_ROT}_test", 50000)), formats.amat_pair,
        ("mnist_bg_rot", "."), **_icml("mnist_rotation_back_image_new.zip"), recipe="bg_rot",
    ),
    *(
        Spec(
            f"mnist_noise_{level}", f"MNIST-noise, level {level}", 12000, 2000, 10, _GREY28,
            _amat((f"mnist_noise_variations_all_{level}", 14000)), formats.mnist_noise,
            ("mnist_noise", "."), **_icml("mnist_noise_variation.tar.gz"), recipe="noise", level=level,
        )
        for level in range(1, 7)
    ),
    Spec(
        "cifar10", "CIFAR-10", 50000, 10000, 10, (3, 32, 32), _CIFAR10, formats.cifar10, **_CIFAR10_PLACES,
    ),
    Spec(
        "cifar10_grey", "CIFAR-10, grey", 50000, 10000, 10, (1, 32, 32), _CIFAR10,
        formats.cifar10_grey, **_CIFAR10_PLACES,
    ),
    Spec(
        "norb", "NORB", 291600, 58320, 6, _GREY32, _NORB, partial(formats.pairs, train=10),
        ("norb", "."), ("norb",), **_single(_NORB, "https://cs.nyu.edu/~ylclab/data/norb-v1.0/"),
    ),
    Spec(
        "rectangles", "Rectangles", 1200, 50000, 2, _GREY28,
        _amat(("rectangles_train", 1200), ("rectangles_test", 50000)), formats.rectangles,
        ("rectangles", "."), **_icml("rectangles.zip"), recipe="rectangles",
    ),
    Spec(
        "mnist", "MNIST", 60000, 10000, 10, _GREY28, _MNIST, formats.pairs,
        ("mnist", "MNIST/raw", "."), ("mnist",), in_paper=False,
        **_single(_MNIST, "http://yann.lecun.com/exdb/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
    ),
    Spec(
        "small_norb", "small NORB", 24300, 24300, 5, _GREY32, _SMALL_NORB, formats.pairs,
        ("small_norb", "smallnorb", "."), ("smallnorb", "small_norb"), in_paper=False,
        **_single(_SMALL_NORB, "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/"),
    ),
)  # fmt: skip
DATASETS: Mapping[str, Spec] = MappingProxyType({spec.name: spec for spec in _SPECS})


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
