"""The gallery: the script draws every class, small, and the page in the documentation is what it writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import torchldr

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_OPERATORS = ["dense", "fastfood", "monarch", "kronecker", "blast"]
ROW = re.compile(r"^\| \[(.+)\]\(#.+\) \| .+ \| (\d+|-) \| (\d+) \| (\d+|-) \|$", re.MULTILINE)


@pytest.fixture
def gallery(tmp_path: Path, load_script, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(ROOT / "scripts")
    written = load_script("scripts/gallery.py").main(tmp_path)
    assert written == [*_pictures(tmp_path), tmp_path / "gallery.md"]
    return tmp_path


def _pictures(folder: Path) -> list[Path]:
    """In the order of the page; the last one belongs to another page."""
    found = re.findall(r"\]\((gallery/\w+\.png)\)", (folder / "gallery.md").read_text())
    return [folder / name for name in (*found, "gallery/learned_operators.png")]


def test_the_gallery(gallery: Path):
    """One test: two workers would draw everything twice."""
    page_is_what_the_script_writes(gallery)
    every_class_is_there_and_pictures_are_small(gallery)
    no_rank_exceeds_what_is_stated(gallery)


def page_is_what_the_script_writes(gallery: Path):
    assert (gallery / "gallery.md").read_text() == (ROOT / "docs" / "gallery.md").read_text()
    names = {path.name for path in _pictures(gallery)}
    assert names == {path.name for path in (gallery / "gallery").iterdir()}
    assert names == {path.name for path in (ROOT / "docs" / "gallery").iterdir()}


def every_class_is_there_and_pictures_are_small(gallery: Path):
    names = {path.stem for path in _pictures(gallery)}
    assert names >= set(torchldr.structures())
    for path in [*_pictures(gallery), *_pictures(ROOT / "docs")]:
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG")
        assert 2_000 < len(content) < 60_000, path


def no_rank_exceeds_what_is_stated(gallery: Path):
    rows = ROW.findall((gallery / "gallery.md").read_text())
    assert len(rows) == len(_pictures(gallery)) - 2
    known = [(title, stated, found) for title, stated, found, _ in rows if stated != "-"]
    assert len(rows) - len(known) == len(WITHOUT_OPERATORS)
    for title, stated, found in known:
        assert int(found) <= int(stated) <= 4, title
    exact = {title: krylov for title, _, _, krylov in rows}
    for title, rank in (("Toeplitz", "2"), ("Hankel", "2"), ("Circulant", "1"), ("Vandermonde", "1")):
        assert exact[title] == rank
