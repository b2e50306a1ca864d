"""Finding official files in a folder, and reading them out of gzip, zip and tar.

A file may lie there plainly, gzipped (`name.gz`), or inside one of its archives. Nothing is
unpacked to disk: an archive is read once from front to back, and each file in it goes straight to
its reader.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Self, cast

from torchldr_paper.data.dataset import Array, DataFileError
from torchldr_paper.data.registry import OfficialFile, Spec, algorithm, file_digest

ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
_ZIPPED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_EXTENSION = 1 << 20  # bytes that a long name or another extension of a tar header may have
_EXTENSIONS = (*tarfile.GNU_TYPES, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE, tarfile.XHDTYPE)


@dataclass(frozen=True)
class Located:
    """The files of a dataset in one folder: where each is, and which are not there."""

    root: Path
    found: tuple[tuple[OfficialFile, Path], ...]
    missing: tuple[OfficialFile, ...]

    @property
    def complete(self) -> bool:
        """Whether every file was found."""
        return not self.missing

    @property
    def containers(self) -> list[Path]:
        """The files on disk that hold the dataset, each once."""
        return list(dict.fromkeys(path for _, path in self.found))


def locate(spec: Spec, root: Path) -> Located:
    """Look for a dataset's files in a data folder, without opening any.

    Loose files come before archives, and a dataset's own folder before the data folder itself. An
    archive counts as holding every file that does not lie beside it.
    """
    folders = [root / folder for folder in spec.folders]
    archive = _first_of(folders, spec.archives, ARCHIVE_SUFFIXES)
    pairs = [
        (file, _first_of(folders, (file.name, *file.aliases), ("", ".gz")) or archive) for file in spec.files
    ]
    found = tuple((file, path) for file, path in pairs if path is not None)
    return Located(root, found, tuple(file for file, path in pairs if path is None))


def _first_of(folders: Sequence[Path], names: Sequence[str], suffixes: Sequence[str]) -> Path | None:
    """The first file that is there, by folder, then by name, then by suffix."""
    paths = (folder / (name + suffix) for folder, name, suffix in product(folders, names, suffixes))
    return next((path for path in paths if path.is_file()), None)


def read_files(located: Located, checksums: Mapping[str, str], *, verify: bool) -> list[Array]:
    """Parse every file of a dataset, in the registry's order.

    Raises:
        DataFileError: when a file is damaged, is not what its name says, fails its checksum, or is
            not in the archive; the message names it.
    """
    parsed: dict[str, Array] = {}
    for container in located.containers:
        wanted = [file for file, path in located.found if path == container]
        known = checksums.get(container.name)
        if verify and known and not all(file.name in checksums for file in wanted):
            _compare(str(container), known, file_digest(container, known))
        try:
            for file, stream, where in _streams(container, wanted):
                digest = checksums.get(file.name) if verify else None
                parsed[file.name] = _parse(file, stream, where, digest)
        except DataFileError:
            raise
        except Exception as error:
            # The standard library raises many classes on damage. What names a file is no damage.
            if isinstance(error, OSError) and error.filename is not None:
                raise
            raise DataFileError(
                f"{container}: damaged or cut short, it cannot be read to its end ({error})."
            ) from error
        absent = [file.name for file in wanted if file.name not in parsed]
        if absent:
            raise DataFileError(f"{container}: expected {', '.join(absent)} in it, found none.")
    return [parsed[file.name] for file, _ in located.found]


def _parse(file: OfficialFile, stream: IO[bytes], where: str, expected: str | None) -> Array:
    if expected is None:
        return file.read(cast(BinaryIO, stream), where, file.shape)
    hashing = _Hashing(stream, algorithm(expected))
    array = file.read(cast(BinaryIO, hashing), where, file.shape)
    _compare(where, expected, hashing.digest.hexdigest())
    return array


def _compare(where: str, expected: str, got: str) -> None:
    if got != expected:
        raise DataFileError(
            f"{where}: {algorithm(expected)} is {got}, expected {expected}. The file is damaged or "
            "another version; get it again, or load with verify=False to use it all the same."
        )


def _streams(container: Path, wanted: list[OfficialFile]) -> Iterator[tuple[OfficialFile, IO[bytes], str]]:
    """Yield (file, its uncompressed stream, its name for messages), each valid until the next."""
    left = {name: file for file in wanted for name in (file.name, *file.aliases)}
    for member, stream in _members(container):
        base = PurePosixPath(member).name
        file = left.get(base) or left.get(base.removesuffix(".gz"))
        if file is None:
            continue
        for name in (file.name, *file.aliases):
            left.pop(name)
        where = str(container) if member == container.name else f"{container} ({member})"
        if base.endswith(".gz"):
            with gzip.GzipFile(fileobj=stream) as unzipped:
                yield file, cast(IO[bytes], unzipped), where
        else:
            yield file, stream, where
        if not left:
            return


def _members(container: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The members of an archive; any other file is its own member."""
    if not container.name.endswith(ARCHIVE_SUFFIXES):
        with container.open("rb") as stream:
            yield container.name, stream
    elif container.suffix == ".zip":
        with zipfile.ZipFile(container) as archive:
            for member in archive.infolist():
                if member.compress_type not in _ZIPPED:  # the others give all that they hold at one reading
                    raise zipfile.BadZipFile(f"{member.filename} is not deflated")
                with archive.open(member) as packed:
                    yield member.filename, io.BufferedReader(cast(io.RawIOBase, packed), 1 << 20)
    else:
        # "r|*" reads forward only: a compressed tar is decompressed once however many files it has.
        with tarfile.open(container, "r|*", tarinfo=_Header) as tar:
            for info in tar:
                stream_or_none = tar.extractfile(info)
                if stream_or_none is not None:
                    yield info.name, stream_or_none


class _Header(tarfile.TarInfo):
    """The header of a member. Extensions are read whole, and so may not be large."""

    def _proc_member(self, tar: tarfile.TarFile) -> Self:  # made to be overridden, see tarfile.py
        if self.type in _EXTENSIONS and self.size > _EXTENSION:
            raise tarfile.ReadError(f"a header of {self.size:,} bytes")
        return super()._proc_member(tar)  # type: ignore[misc]


class _Hashing:
    """A stream that hashes all that is read through it."""

    def __init__(self, stream: IO[bytes], kind: str) -> None:
        self._stream, self.digest = stream, hashlib.new(kind, usedforsecurity=False)

    def read(self, size: int) -> bytes:
        return self._hashed(self._stream.read(size))

    def readline(self, size: int) -> bytes:
        return self._hashed(self._stream.readline(size))

    def _hashed(self, data: bytes) -> bytes:
        self.digest.update(data)
        return data
