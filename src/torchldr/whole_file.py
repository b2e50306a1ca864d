"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

__all__ = ["whole_file"]


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A stream that writes a file, which gets its name when everything is on the disk.

    At any moment the file is the old one or the new one, and a failed write leaves nothing behind.

        with whole_file("report.html") as stream:
            stream.write(page.encode())

    Raises:
        OSError: if it cannot be written. The error names the file, which a full disk's own does not.
    """
    path = Path(path).resolve()  # through a link, which stays one
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():  # a pipe or a device
            with path.open("wb") as stream:
                yield stream
            return
        with partial.open("x+b") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        partial.unlink(missing_ok=True)
