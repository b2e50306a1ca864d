"""The corpus: words, numbers, and where its files are looked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from torchldr_paper.data import DataFileError, DatasetNotFoundError
from torchldr_paper.data.text import OFFICIAL, load_corpus

LINES = {"train": " \n = A title = \n the cat sat \n", "valid": "the dog sat\n", "test": "a cat"}


def write(folder: Path, pattern: str = "{}.txt") -> Path:
    folder.mkdir(parents=True)
    for part, text in LINES.items():
        (folder / pattern.format(part)).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("place", "pattern"), [("wikitext-2", "{}.txt"), ("wikitext2", "wiki.{}.tokens"), (".", "{}.txt")]
)
def test_words_are_numbered_as_they_appear(tmp_path: Path, place: str, pattern: str) -> None:
    write(tmp_path / "data" / place, pattern)
    corpus = load_corpus(data_dir=tmp_path / "data")
    # <eos> ends every line, an empty one too: <eos> = A title = <eos> the cat sat <eos>
    assert corpus.train.tolist() == [0, 1, 2, 3, 1, 0, 4, 5, 6, 0]
    assert corpus.valid.tolist() == [4, 7, 6, 0]
    assert corpus.test.tolist() == [8, 5, 0]
    assert corpus.words == 9
    assert corpus.source == "user"
    assert corpus.train.dtype == np.int64


def test_the_fingerprint_is_of_the_words(tmp_path: Path) -> None:
    write(tmp_path / "a" / "wikitext-2")
    write(tmp_path / "b" / "wikitext2", "wiki.{}.tokens")
    first, second = (load_corpus(data_dir=tmp_path / name) for name in "ab")
    assert first.fingerprint == second.fingerprint
    (tmp_path / "b" / "wikitext2" / "wiki.test.tokens").write_text("a dog", encoding="utf-8")
    assert load_corpus(data_dir=tmp_path / "b").fingerprint != first.fingerprint


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHLDR_DATA", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(DatasetNotFoundError, match=r"train\.txt, valid\.txt and test\.txt into .*wikitext-2"):
        load_corpus()
    with pytest.raises(ValueError, match="unknown corpus 'wikitext3'"):
        load_corpus("wikitext3")


def test_files_that_are_no_text(tmp_path: Path) -> None:
    folder = write(tmp_path / "wikitext-2")
    (folder / "valid.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataFileError, match=r"valid\.txt: expected text in UTF-8"):
        load_corpus(data_dir=tmp_path)
    (folder / "valid.txt").write_text("", encoding="utf-8")
    with pytest.raises(DataFileError, match="at least two words"):
        load_corpus(data_dir=tmp_path)


def test_the_official_files_where_they_are_here() -> None:
    try:
        corpus = load_corpus()
    except DatasetNotFoundError:
        pytest.skip("needs WikiText-2")
    counts = len(corpus.train), len(corpus.valid), len(corpus.test)
    if corpus.source != "official":
        pytest.skip(f"another corpus is here, with {counts} words")
    assert (counts, corpus.words) == OFFICIAL
