"""Strange lines of a ledger: each is skipped with its file and line, or every table and page can show it."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchldr_paper import Ledger, Protocol, Run, run_rows
from torchldr_paper.ledger.ledger import _published
from torchldr_paper.ledger.records import check_line
from torchldr_paper.report.page import packed_runs, report, run_json
from torchldr_paper.report.sections import facts

from ..test_figures import made_up

RUN = Run("mine.npz", structure="ldr_sd", protocol=Protocol(epochs=2, lrs=(0.001, 0.01), trials=1))
STRANGE = [None, True, -1, 1.5, 10**12, 10**400, "x", "\ud800", [], [[]], {}, {"a": {}}]


def line() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(made_up(RUN, 70.0, "user").to_line())
    del found["checksum"]  # as in version 0.1
    return found


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every part of a line, of lists the first entry."""
    yield path
    keys = list(value) if isinstance(value, dict) else [0] if isinstance(value, list) and value else []
    for key in keys:
        yield from places(value[key], (*path, key))


def changed(path: tuple[Any, ...], value: Any) -> Any:
    whole: list[Any] = [line()]
    part: Any = whole
    for key in (0, *path)[:-1]:
        part = part[key]
    part[(0, *path)[-1]] = value
    if path[0] == "config":  # what remains possible has the hash that it should have
        with contextlib.suppress(Exception):
            whole[0]["hash"] = Run.from_config(value if path == ("config",) else whole[0]["config"]).hash
    return whole[0]


def show(ledger: Ledger) -> None:
    """What tables and the report make of it."""
    text = json.dumps([run_json(record) for record in ledger], separators=(",", ":"))
    assert packed_runs(ledger)
    assert not {"NaN", "Infinity"} & {*text.replace(",", ":").split(":")}
    assert len(run_rows([record.run for record in ledger], ledger)) == len(ledger)
    assert all(facts(ledger).values())


@pytest.mark.parametrize("part", list(line()))
def test_every_part_replaced(part: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    file, good = tmp_path / "ledger.jsonl", made_up(Run("other.npz"), 60.0, "user").to_line()
    for path in places(line()[part], (part,)):
        for value in STRANGE:
            file.write_text(f"{good}\n{json.dumps(changed(path, value))}\n")
            ledger = Ledger(tmp_path, published=False)
            assert ledger.find(Run("other.npz")) is not None
            assert len(ledger.problems) == (len(ledger) == 1), path
            assert all(problem.startswith(f"{file}, line 2: skipped") for problem in ledger.problems)
            show(ledger)


UNREADABLE = [
    json.dumps({**line(), "config": None}),
    "[" * 100_000,
    json.dumps(line()).replace('"time"', '"notes": ' + "[" * 500 + "]" * 500 + ', "time"'),
    json.dumps(line()).replace('"parameters": 1', '"parameters": NaN, "p": 1'),
    json.dumps(line()).replace('"seconds": ', '"seconds": 1e999, "s": '),
    json.dumps(changed(("config", "protocol", "trials"), 10**12)),
    "null",
    "\0",
    "1" * 10_000,
]


def test_no_line_makes_the_others_unreadable(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = made_up(RUN, 60.0, "user").to_line()
    (tmp_path / "ledger.jsonl").write_text("\n".join([*UNREADABLE, good, ""]))
    ledger = Ledger(tmp_path, published=False)
    assert len(ledger) == 1
    assert len(ledger.problems) == len(UNREADABLE)
    for number in range(1, len(UNREADABLE) + 1):
        assert f"{ledger.path}, line {number}: skipped: " in caplog.text
    page = report(ledger, tmp_path / "report.html", figures=False)
    told = f"{len(UNREADABLE)} lines of the ledger could not be read"
    assert told in page.read_text(encoding="utf-8")


def test_every_published_line_holds_what_a_record_must():
    """Lines with a checksum are read without this check."""
    for _, text in _published():
        for line in filter(None, text.split("\n")):
            found = json.loads(line)
            protocol = found["config"]["protocol"]
            check_line(found, len(protocol["lrs"]) * protocol["trials"])
