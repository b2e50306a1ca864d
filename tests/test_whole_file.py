"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchldr.whole_file import whole_file


def test_a_file_is_the_old_or_the_new_one(tmp_path: Path):
    path = tmp_path / "deep" / "a.txt"
    with whole_file(path) as stream:
        stream.write(b"old")
    with pytest.raises(TypeError), whole_file(path) as stream:
        stream.writelines([b"half", "not bytes"])
    assert path.read_bytes() == b"old"
    with whole_file(path) as stream:
        stream.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_a_link_stays_one(tmp_path: Path):
    (tmp_path / "to").write_bytes(b"old")
    (tmp_path / "link").symlink_to("to")
    with whole_file(tmp_path / "link") as stream:
        stream.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "to").read_bytes() == b"new"


def test_devices_are_written_to():
    with whole_file(os.devnull) as stream:
        stream.write(b"nothing")


def test_errors_name_the_file(tmp_path: Path, full_disk):
    path = tmp_path / "a.bin"
    with full_disk(100), pytest.raises(OSError, match=r"a\.bin"), whole_file(path) as stream:
        stream.write(b"0" * 10_000)
    assert not list(tmp_path.iterdir())
