from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from torchldr_paper.ledger.ledger import Ledger
from torchldr_paper.tables.pages import PAGES, fill, main

ROOT = Path(__file__).parents[3]


def test_the_page_shows_the_published_ledger() -> None:
    main(["--root", str(ROOT), "--check"])


@pytest.mark.parametrize(("name", "shown"), [("experiments.md", "93.39"), ("language.md", "147.56")])
def test_a_page_that_differs_is_reported_and_mended(tmp_path: Path, name: str, shown: str) -> None:
    (tmp_path / "docs").mkdir()
    for copied in PAGES:
        shutil.copy(ROOT / "docs" / copied, tmp_path / "docs" / copied)
    page = tmp_path / "docs" / name
    good = page.read_text()
    assert shown in good
    page.write_text(good.replace(shown, "99.99"))
    with pytest.raises(SystemExit, match="differs from the published ledger"):
        main(["--root", str(tmp_path), "--check"])
    main(["--root", str(tmp_path)])
    assert page.read_text() == good


def test_rows_are_chosen_by_their_values(tmp_path: Path) -> None:
    text = "<!-- table: shl dataset=cifar10_grey rank=16 -->\nold\n<!-- end -->\n"
    filled = fill(text, Ledger(tmp_path))
    assert filled.count("| `") == 1
    assert "`ldr_sd`" in filled
    assert "45,066" in filled


def test_rows_beside_each_other(tmp_path: Path) -> None:
    text = "<!-- table: rhu dataset=mnist_bg_rot model=shl across=rank -->\n<!-- end -->\n"
    head, rule, *lines = fill(text, Ledger(tmp_path)).splitlines()[1:-1]
    assert head.split("|")[1:-1] == [" structure ", " rank 1 ", " 2 ", " 4 ", " 8 ", " 12 ", " 16 "]
    assert rule.count("---:") == 6
    assert [line.split("|")[1].strip() for line in lines] == ["`ldr_sd`", "`rhu`"]
    assert "48.46 (37.18)" in lines[1]


@pytest.mark.parametrize(
    ("marker", "message"), [("scales across=rank", "two rows"), ("shl across=lr", "takes rank")]
)
def test_rows_that_do_not_go_beside_each_other(tmp_path: Path, marker: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fill(f"<!-- table: {marker} -->\n<!-- end -->\n", Ledger(tmp_path))
