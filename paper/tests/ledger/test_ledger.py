from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from torchldr_paper import Ledger, Record, Run, default_results
from torchldr_paper.ledger import ledger as ledger_module
from torchldr_paper.ledger.ledger import merged


def make(run: Run, test: float = 90.0, source: str = "official", fingerprint: str = "f") -> Record:
    best = {
        "replica": 0,
        "lr": 0.001,
        "trial": 0,
        "epoch": 1,
        "validation": 91.0,
        "test": test,
        "train": test + 5,
    }
    mean = {"lr": 0.001, "trials": 3, "validation": 90.0, "test": test - 1, "deviation": 0.5}
    replicas = len(run.protocol.replicas)
    result = {
        "parameters": 100, "seconds": 2.5, "best": best, "mean": mean, "notes": {},
        "diverged": [*[None] * (replicas - 1), 4], "metrics": {"test": [[1.0] * replicas]},
    }  # fmt: skip
    data = {"source": source, "fingerprint": fingerprint, "train": 10, "validation": 2, "test": 5}
    return Record(run, data, result, {"device": "CPU", "versions": {}}, "2024-01-01T00:00:00+00:00")


def test_append_and_read(tmp_path: Path) -> None:
    run = Run("rectangles", structure="ldr_sd")
    ledger = Ledger(tmp_path / "deep" / "results", published=False)
    assert ledger.find(run) is None
    ledger.append(make(run))
    for known in (ledger, Ledger(ledger.results, published=False)):
        record = known.find(run)
        assert record is not None
        assert record.run == run
        assert record.best is not None
        assert record.best.test == 90.0
        assert record.mean is not None
        assert len(known) == 1
    line = json.loads(ledger.path.read_text())
    assert line["hash"] == run.hash
    assert line["config"]["structure"] == "ldr_sd"


def test_later_lines_win(tmp_path: Path) -> None:
    run, ledger = Run("rectangles"), Ledger(tmp_path, published=False)
    ledger.append(make(run, 80.0))
    ledger.append(make(run, 81.0))
    assert len(ledger.path.read_text().splitlines()) == 2
    again = Ledger(tmp_path, published=False)
    assert len(again) == 1
    found = again.find(run)
    assert found is not None
    assert found.best is not None
    assert found.best.test == 81.0


def test_official_data_is_found_before_a_stand_in(tmp_path: Path) -> None:
    run, ledger = Run("rectangles"), Ledger(tmp_path, published=False)
    ledger.append(make(run, source="official", fingerprint="a"))
    ledger.append(make(run, source="stand-in", fingerprint="b"))
    found = ledger.find(run), ledger.find(run, source="stand-in"), ledger.find(run, fingerprint="b")
    assert [record.source for record in found if record] == ["official", "stand-in", "stand-in"]
    assert ledger.find(run, fingerprint="c") is None


def test_a_torn_last_line_is_reported_and_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = Run("rectangles"), Run("rectangles", seed=1)
    ledger = Ledger(tmp_path, published=False)
    ledger.append(make(first))
    ledger.append(make(second))
    text = ledger.path.read_bytes()
    ledger.path.write_bytes(text[:-200])

    torn = Ledger(tmp_path, published=False)
    assert torn.find(first)
    assert not torn.find(second)
    assert len(torn.problems) == 1
    assert "line 2: skipped (cut off" in caplog.text

    torn.append(make(second))  # what is written next begins on a line of its own
    mended = Ledger(tmp_path, published=False)
    assert mended.find(first)
    assert mended.find(second)
    assert len(mended.problems) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda line: {**line, "version": 99}, "version 99 is not known"),
        (lambda line: {**line, "hash": "0" * 16}, "its hash is"),
        (lambda line: {**line, "config": {**line["config"], "colour": 1}}, "unknown key 'colour'"),
        (lambda line: {k: v for k, v in line.items() if k != "result"}, "result"),
        (lambda line: [line], "not an object"),
    ],
)
def test_lines_that_are_no_records(change: object, reason: str, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, published=False)
    ledger.append(make(Run("rectangles")))
    line = json.loads(ledger.path.read_text())
    del line["checksum"]  # as in version 0.1: damage shows by itself
    ledger.path.write_text(json.dumps(change(line)) + "\n")  # type: ignore[operator]
    again = Ledger(tmp_path, published=False)
    assert len(again) == 0
    assert reason in again.problems[0]


WRITERS = """
import os, sys
sys.path.insert(0, here)
from test_ledger import Ledger, Run, make
for first in (0, 20):
    if os.fork() == 0:
        ledger = Ledger(folder, published=False)
        for seed in range(first, first + 20):
            ledger.append(make(Run("rectangles", seed=seed)))
        os._exit(0)
assert [os.wait()[1] for _ in range(2)] == [0, 0]
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_two_writers_at_once(started: Any, tmp_path: Path) -> None:
    with started(WRITERS, folder=str(tmp_path), here=str(Path(__file__).parent)) as both:
        both.join()
        assert both.exitcode == 0
    ledger = Ledger(tmp_path, published=False)
    assert not ledger.problems
    assert len(ledger) == 40


def test_a_ledger_that_another_process_holds_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "_WAIT_SECONDS", 0.1)
    ledger = Ledger(tmp_path, published=False)
    with FileLock(tmp_path / ledger_module.LOCK), pytest.raises(OSError, match="another process has held"):
        ledger.append(make(Run("rectangles")))
    assert not len(ledger)
    ledger.append(make(Run("rectangles")))
    assert len(Ledger(tmp_path, published=False)) == 1


def test_what_was_published_is_read_and_ones_own_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = Run("rectangles"), Run("rectangles", seed=1)
    text = merged([make(ours, 70.0), make(theirs, 71.0)])
    monkeypatch.setattr(ledger_module, "_published", lambda: [("published/all.jsonl", text)])
    ledger = Ledger(tmp_path)
    assert len(ledger) == 2
    ledger.append(make(ours, 75.0))
    found = Ledger(tmp_path).find(ours)
    assert found is not None
    assert found.best is not None
    assert found.best.test == 75.0
    assert len(Ledger(tmp_path)) == 2


def test_the_packages_own_ledger_can_be_read(tmp_path: Path) -> None:
    assert not Ledger(tmp_path).problems


def test_curves_that_are_not_kept_are_not_read(tmp_path: Path) -> None:
    """Published lines give the same records, but for their metrics, which are not parsed at all."""
    whole, brief = Ledger(tmp_path), Ledger(tmp_path, curves=False)
    assert any(record.result["metrics"] for record in whole)
    for one, other in zip(whole, brief, strict=True):
        assert {**one.to_json(), "result": {**one.result, "metrics": None}} == {
            **other.to_json(),
            "result": {**other.result, "metrics": None},
        }
        assert not other.result.get("metrics")


def test_merged_is_ordered_and_holds_the_latest() -> None:
    a, b = Run("rectangles"), Run("cifar10", structure="ldr_sd")
    lines = [json.loads(line) for line in merged([make(a, 1.0), make(b), make(a, 2.0)]).splitlines()]
    assert [line["config"]["data"] for line in lines] == ["cifar10", "rectangles"]
    assert lines[1]["result"]["best"]["test"] == 2.0


def test_results_of_a_checkout_and_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "checkout" / "paper" / "src" / "torchldr_paper" / "ledger" / "ledger.py"
    monkeypatch.setattr(ledger_module, "__file__", str(inside))
    assert default_results() == Path("results")
    inside.parent.mkdir(parents=True)
    (tmp_path / "checkout" / "pyproject.toml").touch()
    assert default_results() == tmp_path / "checkout" / "results"
    monkeypatch.setattr(
        ledger_module, "__file__", str(tmp_path / "a" / "lib" / "torchldr_paper" / "ledger" / "ledger.py")
    )
    assert default_results() == Path("results")


def test_records_of_one_run_with_other_data(tmp_path: Path) -> None:
    run = Run("mine.npz")
    ledger = Ledger(tmp_path, published=False)
    ledger.append(make(run, source="user", fingerprint="old"))
    ledger.append(replace(make(run), data={**make(run).data, "source": "user", "fingerprint": "new"}))
    assert len(ledger) == 2
