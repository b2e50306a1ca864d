"""The pages show the published results, and what differs is reported and mended."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEDGER = ["docs/deviations.md", "docs/experiments.md"]


def test_the_pages_show_the_published_results(fill_pages: ModuleType) -> None:
    assert fill_pages.main(["--check"]) == 0, "run python scripts/fill_pages.py"


def test_an_unknown_table_is_an_error(fill_pages: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("<!-- table: speeds -->\n<!-- end -->")
    with pytest.raises(ValueError, match="unknown table 'speeds'"):
        fill_pages.main(["--root", str(tmp_path)])


def test_differences_are_reported_and_mended(
    fill_pages: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    good = {name: (ROOT / name).read_text() for name in LEDGER}
    wrong = {**good}
    for name, shown in (("docs/deviations.md", "118.3"), ("docs/experiments.md", "93.39")):
        assert shown in good[name]
        wrong[name] = good[name].replace(shown, "99.99")
    for name, text in wrong.items():
        (tmp_path / name).write_text(text)
    assert fill_pages.main(["--root", str(tmp_path), "--check"]) == 1
    told = capsys.readouterr().err.splitlines()
    assert told == [f"docs/{name}.md: differs from its results" for name in ("deviations", "experiments")]
    assert {name: (tmp_path / name).read_text() for name in LEDGER} == wrong
    assert fill_pages.main(["--root", str(tmp_path)]) == 0
    for name, text in good.items():
        assert (tmp_path / name).read_text() == text, "run python scripts/fill_pages.py"
