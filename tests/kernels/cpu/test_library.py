"""The library of C functions: missing, broken, of other sources; and what it takes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from torchldr.kernels.cpu import library


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the library is looked for, in this test alone."""
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    for cached in (library._loaded, library._warn):
        cached.cache_clear()
    yield tmp_path
    for cached in (library._loaded, library._warn):
        cached.cache_clear()


def test_without_it_one_warning(folder: Path) -> None:
    assert "no C compiler" in str(library.why_not())
    with pytest.warns(RuntimeWarning, match="plain torch"):
        assert not library.serves(torch.ones(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not library.available()


def test_what_it_would_not_take_warns_of_nothing(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not library.serves(torch.ones(1, dtype=torch.bfloat16))
        assert not library.serves(torch.ones(1, device="meta"))


def test_a_broken_file_says_so(folder: Path) -> None:
    (folder / "_kernels.so").write_text("not a library")
    assert "_kernels.so cannot be loaded" in str(library.why_not())
    with pytest.raises(RuntimeError, match=r"scan_fill: _kernels\.so cannot be loaded"):
        library.Kernel("scan_fill", "i")(torch.float32, 1)


@pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))
def test_other_sources_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "INTERFACE", -1)
    library._loaded.cache_clear()
    try:
        assert "built from other sources" in str(library.why_not())
    finally:
        library._loaded.cache_clear()


@pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))
def test_one_dtype_in_memory() -> None:
    one = torch.ones(1)
    assert library.serves(one, one)
    assert library.serves(one.double())
    assert not library.serves(one, one.double())
    assert not library.serves(one.half())
