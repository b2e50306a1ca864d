"""Downloading official files: verified, resumable, and there only when whole."""

from __future__ import annotations

import http.client
import logging
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torchldr.progress import Report, silent
from torchldr_paper.data.dataset import DataFileError, DownloadError
from torchldr_paper.data.places import search_path
from torchldr_paper.data.registry import algorithm, file_digest, largest_download, lookup

_log = logging.getLogger("torchldr_paper.data")

_BLOCK = 1 << 18
_STEP = 1 << 16  # bytes that an attempt must bring to count as one that went on
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)


def fetch(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    url: str | None = None,
    *,
    progress: Report = silent,
    force: bool = False,
    retries: int = 4,
    timeout: float = 30.0,
) -> list[Path]:
    """Download a dataset's official files from its owner.

    Files that are there and pass their checksum are left alone. A download that was interrupted
    goes on where it stopped, by itself and when `fetch` is called again. A file that fails its
    checksum is removed.

    Args:
        name: a name of the registry.
        data_dir: the data folder to download into, made if need be; else `$TORCHLDR_DATA`, else the
            user's cache folder. Files go into the dataset's own folder in it.
        url: another address than the owner's, of a folder with the same files or of one of them.
        progress: called with (file name, bytes here, bytes in all or None).
        force: download again what is there.
        retries: attempts in a row that bring nothing, or next to nothing, before giving up.
        timeout: seconds to wait for the server at any one time.

    Returns:
        The files, in the registry's order.

    Raises:
        ValueError: for an unknown name or an address that is not http.
        DownloadError: when the files could not be had; what had arrived is kept for the next time,
            unless it is more than the file can have.
        DataFileError: when what came fails its checksum; nothing of it is left.
    """
    spec = lookup(name)
    root = search_path()[0] if data_dir is None else Path(data_dir).expanduser()
    folder = root / spec.folders[0]
    addresses = spec.addresses if url is None else (url.removesuffix(_last(url, spec.downloads)),)
    for address in addresses:
        if urllib.parse.urlsplit(address).scheme not in ("http", "https"):
            raise ValueError(f"url must begin with http:// or https://, got {address!r}.")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for file in spec.downloads:
        path, digest = folder / file, spec.checksums.get(file)
        if force or not _is_whole(path, digest):
            sources = [address.rstrip("/") + "/" + file for address in addresses]
            Download(path, digest, largest_download(file), progress, retries, timeout).from_any(sources)
        paths.append(path)
    return paths


@dataclass(frozen=True)
class Download:
    """One file to download; it appears under its name only when it is whole and verified.

    What has arrived is kept as `name.part`, and the next attempt asks the server for the rest of it
    (HTTP Range); a server that cannot do so sends all of it again. For the last fields see `fetch`.
    """

    path: Path  # where to put it
    digest: str | None = None  # its md5, sha1 or sha256 in hexadecimal, if known
    limit: int | None = None  # bytes that it has at most, if known; more are not taken
    progress: Report = silent
    retries: int = 4
    timeout: float = 30.0

    @property
    def part(self) -> Path:
        return self.path.with_name(self.path.name + ".part")

    def from_any(self, urls: Sequence[str]) -> None:
        """Download from the first address that has the right file."""
        errors: list[DownloadError | DataFileError] = []
        for url in urls:
            try:
                self.from_one(url)
                return
            except (DownloadError, DataFileError) as error:
                errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        raise DownloadError(" ".join(str(error) for error in errors)) from errors[-1]

    def from_one(self, url: str) -> None:
        """Download from one address, in as many attempts as it takes and `retries` allow."""
        part, failures = self.part, 0
        while True:
            before = _size(part)
            try:
                self._attempt(url)
                break
            except DownloadError:
                part.unlink(missing_ok=True)
                raise
            except urllib.error.HTTPError as error:
                error.close()
                if error.code not in _TRANSIENT:
                    raise DownloadError(f"{url}: the server says {error.code} {error.reason}.") from error
                reason: Exception = error
            except (OSError, http.client.HTTPException) as error:
                reason = error
            failures = 0 if _size(part) - before >= _STEP else failures + 1
            if failures >= self.retries:
                kept = f" {_size(part):,} bytes are kept; fetch again to go on." if _size(part) else ""
                raise DownloadError(f"{url}: the download failed ({reason}).{kept}") from reason
            _log.info("%s: interrupted (%s), trying again", url, reason)
            time.sleep(min(0.5 * 2**failures, 8.0) if failures else 0.0)
        if self.digest is not None and (got := file_digest(part, self.digest)) != self.digest:
            part.unlink()
            what = f"{algorithm(self.digest)} of what came is {got}, expected {self.digest}"
            raise DataFileError(f"{url}: {what}. It was removed.")
        os.replace(part, self.path)

    def _attempt(self, url: str) -> None:
        """Bring the partial file to its end, or raise with what arrived kept in it.

        Raises:
            DownloadError: where there is more of it than `limit`.
        """
        part, start = self.part, _size(self.part)
        headers = {"User-Agent": "torchldr", "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        request = urllib.request.Request(url, headers=headers)
        try:
            response = urllib.request.urlopen(request, timeout=self.timeout)
        except urllib.error.HTTPError as error:
            if error.code != 416:
                raise
            # Nothing is left to send: either all is here, or what is here is not of this file.
            error.close()
            if error.headers.get("Content-Range", "").strip() != f"bytes */{start}":
                part.unlink()
                raise ConnectionError("the partial file did not fit and was removed") from error
            return
        with response:
            first = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
            if response.status != 206 or first is None or int(first.group(1)) != start:
                start = 0  # the server sends the file from its beginning
            total = start + response.length if response.length is not None else None
            done = start
            self.progress(self.path.name, done, total)
            with part.open("ab" if start else "wb") as stream:
                self._check_size(url, total)
                while block := response.read(_BLOCK):
                    done += len(block)
                    self._check_size(url, done)
                    stream.write(block)
                    self.progress(self.path.name, done, total)
        if total is not None and done != total:
            raise ConnectionError(f"the connection ended after {done:,} of {total:,} bytes")

    def _check_size(self, url: str, size: int | None) -> None:
        if size is not None and self.limit is not None and size > self.limit:
            what = f"more than the {self.limit:,} bytes that the file can have"
            raise DownloadError(f"{url}: the server sends {what}.")


def _is_whole(path: Path, digest: str | None) -> bool:
    return path.is_file() and (digest is None or file_digest(path, digest) == digest)


def _last(url: str, files: tuple[str, ...]) -> str:
    """The file's name at the end of an address, if it is one of `files`."""
    name = url.rpartition("/")[2]
    return name if name in files else ""


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
