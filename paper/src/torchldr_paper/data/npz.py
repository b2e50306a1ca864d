"""Reading .npz files: without pickle, and nothing is allocated that the file does not hold.

A header inside may claim any size, and a small file may unpack to a large one. So an array must have the
size that the archive lists, and that no more than packing can account for.
"""

from __future__ import annotations

import math
import os
import zipfile
from typing import BinaryIO

import numpy as np

from torchldr_paper.data.dataset import Array

_SUFFIX = ".npy"
_RATIO = 1040  # deflate packs at most 1032 bytes into one
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class NpzArchive:
    """The arrays of an .npz file, each read when it is asked for.

    Raises:
        ValueError: where it is a .npy file.
        Exception: of several classes, from zipfile, where it is no archive or damaged.
    """

    def __init__(self, stream: BinaryIO) -> None:
        if stream.read(6) == np.lib.format.MAGIC_PREFIX:
            raise ValueError("it holds a single array, as in a .npy file")
        self._size = stream.seek(0, os.SEEK_END)
        self._zip = zipfile.ZipFile(stream)
        names = self._zip.namelist()
        self.names = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]

    def read(self, name: str) -> Array:
        """One array, held against the archive's own checksum.

        Raises:
            ValueError: where it holds Python objects or not what it claims.
            Exception: of several classes, from zipfile and NumPy, where it is damaged.
        """
        info = self._zip.getinfo(name + _SUFFIX)
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("packed in a way that np.savez does not")
        with self._zip.open(info) as stream:
            shape, _, dtype = _HEADERS[np.lib.format.read_magic(stream)](stream)
            if dtype.hasobject:
                raise ValueError("Python objects (pickle) are never loaded")
            size = stream.tell() + math.prod(shape) * dtype.itemsize
        if size != info.file_size or size > _RATIO * self._size:
            raise ValueError(f"it claims {size:,} bytes, and holds others")
        with self._zip.open(info) as stream:
            array: Array = np.lib.format.read_array(stream, allow_pickle=False)
        return array
