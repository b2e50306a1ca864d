"""Downloading official files: verified, and only whole files are kept."""

from __future__ import annotations

import http.client
import os
import urllib.parse
from collections.abc import Sequence
from pathlib import Path

from torch.hub import download_url_to_file

from torchldr_paper.data.dataset import DataFileError, DownloadError
from torchldr_paper.data.places import search_path
from torchldr_paper.data.registry import algorithm, file_digest, lookup


def fetch(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    url: str | None = None,
    *,
    progress: bool = False,
    force: bool = False,
) -> list[Path]:
    """Download a dataset's official files from its owner.

    Existing files that pass their checksum are not downloaded again.

    Args:
        name: a name of the registry.
        data_dir: the data folder to download into, made if need be; else `$TORCHLDR_DATA`, else the
            user's cache folder. Files go into the dataset's own folder in it.
        url: an address to use instead of the owner's: a folder with the same files, or one of them.
        progress: show a bar on stderr.
        force: download again even if the files exist.

    Returns:
        The files, in the registry's order.

    Raises:
        ValueError: for an unknown name or an address that is not http.
        DownloadError: if the files could not be downloaded.
        DataFileError: if a download fails its checksum. It is removed.
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
            _download(path, digest, [address.rstrip("/") + "/" + file for address in addresses], progress)
        paths.append(path)
    return paths


def _download(path: Path, digest: str | None, urls: Sequence[str], progress: bool) -> None:
    """Download a file from the first address that has the right one."""
    part, errors = path.with_name(path.name + ".part"), list[DownloadError | DataFileError]()
    for url in urls:
        try:
            download_url_to_file(url, str(part), progress=progress)
            if digest is None or (got := file_digest(part, digest)) == digest:
                part.replace(path)
                return
            what = f"{algorithm(digest)} of what came is {got}, expected {digest}"
            errors.append(DataFileError(f"{url}: {what}. It was removed."))
        except (OSError, ValueError, http.client.HTTPException) as error:
            errors.append(DownloadError(f"{url}: the download failed ({error})."))
        finally:
            part.unlink(missing_ok=True)
    if len(errors) == 1:
        raise errors[0]
    raise DownloadError(" ".join(str(error) for error in errors)) from errors[-1]


def _is_whole(path: Path, digest: str | None) -> bool:
    return path.is_file() and (digest is None or file_digest(path, digest) == digest)


def _last(url: str, files: tuple[str, ...]) -> str:
    """The file's name at the end of an address, if it is one of `files`."""
    name = url.rpartition("/")[2]
    return name if name in files else ""
