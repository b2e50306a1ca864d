"""Published checksums by file name, which `checksums.txt` lists with where they are from.

A file is held against its own checksum whatever it came in, so a gzip made by someone else is fine; an
archive's checksum serves where none of its content is known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from types import MappingProxyType

_LINES = (resources.files(__package__) / "checksums.txt").read_text("utf-8").splitlines()

CHECKSUMS: Mapping[str, str] = MappingProxyType(
    {name: digest for digest, name in (line.split() for line in _LINES if not line.startswith("#"))}
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
