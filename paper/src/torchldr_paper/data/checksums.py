"""Published checksums by file name: 32 digits are md5, 40 digits are sha1.

A file is held against its own checksum whatever it came in, so a gzip made by someone else is
fine; an archive's checksum serves where none of its content is known.

Where they are from:

- MNIST: the .gz and the raw files as listed by torchvision and others; the raw ones recomputed.
- Rectangles, MNIST-bg-rot, MNIST-noise archives: scikit-data's list. The two rectangles .amat files
  were computed by us from the archive with the listed checksum.
- CIFAR-10: the archive's is on the owner's page; those of its six files are widely listed, and were
  recomputed.
- small NORB, NORB: third parties' lists (small NORB: several that agree; NORB: scikit-data's
  alone). Nobody here had these files to recompute them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

_NORB: Mapping[str, tuple[str, ...]] = {  # in the order of the files' numbers
    "norb-5x46789x9x18x6x2x108x108-training-{:02}-dat.mat.gz": (
        "38789c74538b0a3f86a4f854f0f0e3482451fd09",
        "a559ad82aad672ea281db8c437ea89ca6a76a9fa",
        "4318343182078b87af6e93eb7a1a0d63b55a7af4",
        "32e193bb7234de588b67592ce04c57cb5b36412a",
        "0669b2942215f05c33d7be07df352d96b5a4bbe3",
        "779bf6ce2e69cc8cabaf0a1716e6528313c250b0",
        "ef6410b90cae2d11a4609787806ae44cb2bbe719",
        "73302e20486b64824e29a907ec7a353c14c12215",
        "26ad80a8b99283804ab69207f81ff902343037b3",
        "f9d53d3cb99188b085ce304f826c95f1e3dc8e14",
    ),
    "norb-5x46789x9x18x6x2x108x108-training-{:02}-cat.mat.gz": (
        "b9ed38a6af5d9287872ab7064c416fd35dcea79b",
        "192e87e661f29890e0536bc6445b8fa43fbad832",
        "ca6f995f9f5b39ae614f8a355a70d53bf1ce4dff",
        "2353025bfcf02ec6fd91171fcf1f964c2ff1f00b",
        "931f63df18ec27e18a3859e35953a6f2a6478b11",
        "48b91f77aa94dfbd04ccf57b753e4cd42d0631cf",
        "f29cd673bd9840abf0fecd68a4d328b698f50cfa",
        "d3bc1d9111404d683b8ac6b7adb7e4fa972b765f",
        "801d3b16f7813a9e383507a933b1d8a292f3722b",
        "1496bce011b0435da3f54e50560b66abfda9824e",
    ),
    "norb-5x01235x9x18x6x2x108x108-testing-{:02}-dat.mat.gz": (
        "4a2a765a8a351e0c005aef54cf320ca53b04d50c",
        "79e037950a5423fb126685705b4dfb874ca471f3",
    ),
    "norb-5x01235x9x18x6x2x108x108-testing-{:02}-cat.mat.gz": (
        "ba6e05ca90b151997d3fca7082e7a6bd3a470fd4",
        "13d11d472f26492e2ee68cf1cfccc23e143a97cb",
    ),
}

CHECKSUMS: Mapping[str, str] = MappingProxyType(
    {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        "rectangles.zip": "b8d456b1f83bea5efebe76a47a9535adc4b72586",
        "rectangles_train.amat": "e11898dca5cc36015d2c61677057f10efe631e3a",
        "rectangles_test.amat": "51055ac524a46f6d4817d7c4e4dbaf4d583df6e3",
        "mnist_rotation_back_image_new.zip": "902bb7e96136dd76e9f2924d7fdb9eb832f7bc33",
        "mnist_noise_variation.tar.gz": "2d2cfa47c4aa51cc7a8fd1e52abadc7df4b7bfbd",
        "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
        "smallnorb-5x46789x9x18x6x2x96x96-training-dat.mat": "8138a0902307b32dfa0025a36dfa45ec",
        "smallnorb-5x46789x9x18x6x2x96x96-training-cat.mat": "fd5120d3f770ad57ebe620eb61a0b633",
        "smallnorb-5x01235x9x18x6x2x96x96-testing-dat.mat": "e9920b7f7b2869a8f1a12e945b2c166c",
        "smallnorb-5x01235x9x18x6x2x96x96-testing-cat.mat": "fd5120d3f770ad57ebe620eb61a0b633",
        "smallnorb-5x46789x9x18x6x2x96x96-training-dat.mat.gz": "66054832f9accfe74a0f4c36a75bc0a2",
        "smallnorb-5x46789x9x18x6x2x96x96-training-cat.mat.gz": "23c8b86101fbf0904a000b43d3ed2fd9",
        "smallnorb-5x01235x9x18x6x2x96x96-testing-dat.mat.gz": "e4ad715691ed5a3a5f138751a4ceb071",
        "smallnorb-5x01235x9x18x6x2x96x96-testing-cat.mat.gz": "5aa791cd7e6016cf957ce9bdb93b8603",
    }
    | {
        pattern.format(number): digest
        for pattern, digests in _NORB.items()
        for number, digest in enumerate(digests, start=1)
    }
)


def algorithm(digest: str) -> str:
    """The hash function that a hexadecimal digest is of, told by its length."""
    names = {32: "md5", 40: "sha1", 64: "sha256"}
    if len(digest) not in names:
        raise ValueError(
            f"checksum {digest!r}: expected 32 (md5), 40 (sha1) or 64 (sha256) digits, got {len(digest)}."
        )
    return names[len(digest)]


def file_digest(path: Path, kind: str) -> str:
    """The digest of a file on disk, `kind` as `hashlib` names it."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, kind).hexdigest()
