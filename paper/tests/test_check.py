"""`torchldr paper check`: verdicts by hand, and what a ledger of one's own changes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from torchldr_paper import Ledger, Run
from torchldr_paper.tables import check as check_module
from torchldr_paper.tables.check import check, unexplained, verdict_of
from torchldr_paper.tables.claims import claims
from torchldr_paper.tables.explained import GAPS, Gap
from torchldr_paper.tables.paper import TABLES

from .ledger.test_ledger import make

KEYS = [
    "table", "cell", "ours", "deviation", "seeds", "paper", "difference", "standard_errors", "verdict",
    "explained",
]  # fmt: skip


def own(folder: Path, tests: dict[Run, float], source: str = "official") -> Ledger:
    """A ledger with these runs alone."""
    ledger = Ledger(folder, published=False)
    for run, test in tests.items():
        ledger.append(make(run, test=test, source=source))
    return ledger


def rectangles(structure: str, rank: int | None = None) -> Run:
    return next(
        cell.run
        for cell in TABLES["rectangles"].cells
        if (cell.run.structure, cell.run.rank) == (structure, rank)
    )


def only(rows: list[dict[str, Any]]) -> dict[str, Any]:
    (row,) = rows
    assert list(row) == KEYS
    return row


@pytest.mark.parametrize(
    ("worse_by", "error", "verdict"),
    [
        (-0.1, 0.5, "at or above"), (0.0, None, "at or above"), (0.9, 0.5, "within noise"),
        (1.0, 0.5, "below"), (0.1, None, "below"), (0.1, 0.0, "below"),
    ],
)  # fmt: skip
def test_verdicts(worse_by: float, error: float | None, verdict: str) -> None:
    assert verdict_of(worse_by, error) == verdict


def test_the_paper_counts_as_one_run_like_ours(tmp_path: Path) -> None:
    """Three seeds of deviation 1 around 97.6; the paper has 98.39."""
    run = rectangles("ldr_sd", 1)
    ledger = own(tmp_path, {run.with_seed(seed): 96.6 + seed for seed in range(3)})
    row = only(check(ledger)["rows"])
    assert (row["ours"], row["deviation"], row["seeds"], row["paper"]) == (97.6, 1.0, 3, 98.39)
    assert row["difference"] == pytest.approx(-0.79)
    assert row["standard_errors"] == pytest.approx(-0.79 / math.sqrt(4 / 3), abs=0.01)
    assert row["verdict"] == "within noise"
    assert row["cell"] == "rectangles shl ldr_sd r=1"


def test_one_seed_below_is_below(tmp_path: Path) -> None:
    found = check(own(tmp_path, {rectangles("ldr_sd", 1): 98.0}))
    row = only(found["rows"])
    assert (row["deviation"], row["standard_errors"], row["seeds"]) == (None, None, 1)
    assert row["verdict"] == "below"
    assert found["counts"]["below"] == found["counts"]["cells"] == 1
    assert found["counts"]["three seeds or more"] == 0


def test_less_is_better_for_perplexity_and_generalisation(tmp_path: Path) -> None:
    cells = {cell.run: cell.paper for cell in TABLES["lstm_authors"].cells}
    (dense, paper), *_ = cells.items()
    assert paper is not None
    row = only(check(own(tmp_path / "less", {dense: paper - 1}))["rows"])
    assert (row["verdict"], row["difference"]) == ("at or above", -1.0)
    row = only(check(own(tmp_path / "more", {dense: paper + 1}))["rows"])
    assert (row["verdict"], row["difference"]) == ("below", 1.0)


def test_a_gap_covers_its_cells_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = own(tmp_path, {rectangles("ldr_sd", 1): 90.0, rectangles("toeplitz_like", 4): 90.0})
    monkeypatch.setattr("torchldr_paper.tables.explained.GAPS", ())
    assert len(unexplained(check(ledger)["rows"])) == 2
    gap = Gap("rectangles", "This.", "That.", structures=("ldr_sd",), ranks=(1,))
    monkeypatch.setattr("torchldr_paper.tables.explained.GAPS", (gap,))
    found = check(ledger)
    assert [row["cell"] for row in unexplained(found["rows"])] == ["rectangles shl toeplitz_like r=4"]
    assert found["counts"]["below and not explained"] == 1


def test_gaps_are_about_cells_that_there_are() -> None:
    for gap in GAPS:
        rows = (
            {"table": gap.table, "structure": c.run.method, "rank": c.run.rank, "model": c.run.model}
            for c in TABLES[gap.table].cells
        )
        assert any(gap.covers(row) for row in rows), gap
        assert gap.tried.endswith(".")
        assert gap.remains.endswith(".")


def test_stand_ins_have_no_cells_but_an_order(tmp_path: Path) -> None:
    """The paper has LDR-TD 1.73 above dense, and these two 0.66 apart, which is no order."""
    by_name = {(c.run.method, c.run.rank): c.run for c in TABLES["shl"].cells if c.run.data == "mnist_bg_rot"}
    dense, learned, near = by_name["dense", None], by_name["ldr_td", 1], by_name["ldr_sd", 1]
    ledger = own(tmp_path, {dense: 60.0, learned: 57.0, near: 56.0}, source="stand-in")
    found = check(ledger, ["shl"])
    assert found["rows"] == []
    (order,) = found["stand_ins"]
    assert (order["data"], order["pairs"], order["in_order"]) == ("stand-in", 2, 1)
    assert order["against"] == ["ldr_td r=1 over dense"]


def test_equal_budgets_where_the_table_has_budgets(tmp_path: Path) -> None:
    cells = [c for c in TABLES["rhu"].cells if (c.run.data, c.run.model) == ("mnist_bg_rot", "shl")]
    ledger = own(tmp_path, {c.run: 50.0 + i for i, c in enumerate(cells)}, source="stand-in")
    (order,) = check(ledger, ["rhu"])["stand_ins"]
    assert order["pairs"] == 6
    assert order["in_order"] == 0  # each second one is fewer units, and is given the higher score here


def test_claims(tmp_path: Path) -> None:
    cells = [c for c in TABLES["shl"].cells if c.run.data == "cifar10_grey"]
    tests = {c.run: 60.0 if c.run.structure == "ldr_sd" else 50.0 for c in cells}
    speed = [
        {"what": "inference", "rank": 1, "batch": 1, "n": n, "ratio": 9.0, "paper": 3.34} for n in (512, 4096)
    ]
    (tmp_path / "ldr_sd_speed.json").write_text(json.dumps({"sections": {"ldr_sd": speed}}))
    found = claims(own(tmp_path / "ledger", tests), tmp_path)
    ours = {
        row["claim"]: row
        for row in found
        if row["data"] == "CIFAR-10 in grey" and "at its budget" in row["claim"]
    }
    sd, td = ours.values()
    assert sd["holds"] is True
    assert sd["source"] == "official"
    assert sd["numbers"].startswith("60.00 against 50.00 (Toeplitz-like")
    assert td["holds"] is False
    assert {row["holds"] for row in found if row["data"].startswith("MNIST")} == {None}
    assert found[-1]["numbers"] == "9.0 at 4,096 (3.34)"
    assert found[-1]["holds"] is True
    assert "source" not in {row["data"] for row in claims(own(tmp_path / "none", {}))}


def test_every_table_that_is_checked_is_a_table() -> None:
    assert {*check_module.CHECKED, *check_module.STAND_INS} <= set(TABLES)
