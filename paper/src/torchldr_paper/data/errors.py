"""How a dataset can fail: its files are wrong, are not there, or cannot be downloaded."""

from __future__ import annotations


class DataFileError(ValueError):
    """A data file is truncated, corrupt, of the wrong shape or fails its checksum.

    The message names the file, what was expected and what came.
    """


class DatasetNotFoundError(FileNotFoundError):
    """No file of a dataset is present and it cannot be made here.

    The message says which file to put where, and where its owner offers it.
    """


class DownloadError(OSError):
    """A download failed; what had arrived is kept, and the next attempt goes on from there."""
