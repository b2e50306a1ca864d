"""The tables of the documentation that come from the ledger."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from torchldr_paper.ledger.ledger import Ledger

Fill = Callable[[str, Ledger], str]


@pytest.fixture
def fill(fill_pages: ModuleType) -> Fill:
    def fill(text: str, ledger: Ledger) -> str:
        table = fill_pages.ledger.table
        return fill_pages.filled(text, lambda name, keys: table(name, keys, ledger))

    return fill


def test_rows_are_chosen_by_their_values(fill: Fill, tmp_path: Path) -> None:
    text = "<!-- table: shl dataset=cifar10_grey rank=16 -->\nold\n<!-- end -->\n"
    filled = fill(text, Ledger(tmp_path))
    assert filled.count("| `") == 1
    assert "`ldr_sd`" in filled
    assert "45,066" in filled


def test_rows_beside_each_other(fill: Fill, tmp_path: Path) -> None:
    text = "<!-- table: rhu dataset=mnist_bg_rot model=shl across=rank -->\n<!-- end -->\n"
    head, rule, *lines = fill(text, Ledger(tmp_path)).splitlines()[1:-1]
    assert head.split("|")[1:-1] == [" structure ", " rank 1 ", " 2 ", " 4 ", " 8 ", " 12 ", " 16 "]
    assert rule.count("---:") == 6
    assert [line.split("|")[1].strip() for line in lines] == ["`ldr_sd`", "`rhu`"]
    assert "48.46 (37.18)" in lines[1]


@pytest.mark.parametrize(
    ("marker", "message"), [("scales across=rank", "two rows"), ("shl across=lr", "takes rank")]
)
def test_rows_that_do_not_go_beside_each_other(fill: Fill, tmp_path: Path, marker: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fill(f"<!-- table: {marker} -->\n<!-- end -->\n", Ledger(tmp_path))


def test_the_best_accuracy_of_each_size_of_flash(fill_pages: ModuleType) -> None:
    """The best class beside the best of the others, the better one bold; what was not run is left out."""
    tests = {
        "ldr_sd": (90.0, 80.0),
        "toeplitz_like": (85.0, 81.0),
        "low_rank": (89.0, 82.5),
        "dense": (None, None),
    }
    sizes = [budget >> 10 for budget in fill_pages.ledger.BUDGETS]
    rows = [
        {"dataset": data, "model": "shl", "structure": name, "kilobytes": k, "test": test}
        for name, found in tests.items()
        for data, test in zip(("mnist", "norb"), found, strict=True)
        for k in sizes
        if (name, k) != ("low_rank", 256)
    ]
    lines = fill_pages.ledger.render_flash(rows).splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("| mnist | shl | `ldr_sd` **90.00** (89.00) |")
    assert lines[3].startswith("| norb | shl | `toeplitz_like` 81.00 (**82.50**) |")
    assert lines[3].endswith("`toeplitz_like` **81.00** (-) |")
