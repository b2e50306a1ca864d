from __future__ import annotations

from pathlib import Path

import pytest

from torchldr_paper.ledger.ledger import Ledger
from torchldr_paper.tables.pages import PAGES, fill, main

ROOT = Path(__file__).parents[3]


def test_pages_show_the_published_ledger_and_differences_are_reported_and_mended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    good = {name: (ROOT / name).read_text() for name in PAGES}
    wrong = {**good}
    for name, shown in (("docs/experiments.md", "93.39"), ("docs/language.md", "147.56")):
        assert shown in good[name]
        wrong[name] = good[name].replace(shown, "99.99")
    for name, text in wrong.items():
        (tmp_path / name).write_text(text)
    assert main(["--root", str(tmp_path), "--check"]) == 1
    told = capsys.readouterr().err.splitlines()
    assert told == [f"docs/{name}.md: differs from its results" for name in ("experiments", "language")]
    assert {name: (tmp_path / name).read_text() for name in PAGES} == wrong
    assert main(["--root", str(tmp_path)]) == 0
    for name, text in good.items():
        assert (tmp_path / name).read_text() == text, "run python -m torchldr_paper.tables.pages"


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
