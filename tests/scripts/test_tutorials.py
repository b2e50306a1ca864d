"""The tutorials run, and what their pages show is what they print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(path.stem for path in (ROOT / "examples" / "tutorials").glob("*.py"))
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
TIMED = ("latency:", "slower than dense here:", "note:")  # lines that depend on the machine


def lines(page: str) -> list[str]:
    """A page's lines, without those of times and rules; columns may be wider by a digit."""
    kept = [" ".join(line.split()) for line in page.splitlines()]
    return [line for line in kept if not line.startswith(TIMED) and line.strip("- ")]


def numbers(line: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(line)]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_page_shows_what_its_script_prints(name: str, tmp_path: Path, load_script) -> None:
    """Numbers within a quarter: training rounds differently from machine to machine."""
    pytest.importorskip("matplotlib")
    want = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    got = load_script("scripts/tutorials.py").run(name, tmp_path)
    assert [NUMBER.sub("#", line) for line in lines(got)] == [NUMBER.sub("#", line) for line in lines(want)]
    for ours, shown in zip(lines(got), lines(want), strict=True):
        for a, b in zip(numbers(ours), numbers(shown), strict=True):
            assert a == pytest.approx(b, rel=0.25, abs=3), f"{ours!r} is not {shown!r}"
    pictures = {path.name for path in (tmp_path / name).glob("*.png")}
    assert pictures == {path.name for path in (ROOT / "docs" / "tutorials" / name).glob("*.png")}
