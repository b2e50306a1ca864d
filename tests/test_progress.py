"""Progress: one line on a terminal, plain lines elsewhere, and nothing where it is not wanted."""

from __future__ import annotations

import sys

import pytest

from torchldr.progress import Line, reporting, silent


def as_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")


def test_the_line_is_written_over_cut_and_removed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    as_on_a_terminal(monkeypatch)
    with Line() as line:
        line.show("a long line " * 9)
        line.show("short")
        line.say("stays")
    parts = capsys.readouterr().err.split("\r")
    assert len(parts[1]) == 39
    assert parts[2] == "short".ljust(39)
    assert "stays\n" in parts
    assert parts[-2:] == [" " * 5, ""]


def test_a_new_stage_is_shown_at_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    as_on_a_terminal(monkeypatch)
    with reporting(None) as report:
        for stage, done in (("one part", 1), ("one other", 2), ("two", 0)):
            report(stage, done, 4)
    shown = capsys.readouterr().err.split("\r")
    assert shown[1].startswith("one part 1/4, 0:00, about ")
    assert shown[2].rstrip() == "two 0/4, 0:00"
    assert "other" not in "".join(shown)  # too soon


def test_plain_lines_at_the_beginning_and_the_end_of_a_stage(capsys: pytest.CaptureFixture[str]):
    with reporting(True, count=lambda done, total: f": {done}", left=lambda *step: 61.0) as report:
        for done in range(5):
            report("files", done, 4)
    err = capsys.readouterr().err
    assert err == "files: 0, 0:00, about 1:01 left\nfiles: 4, 0:00, about 1:01 left\n"


def test_choices(capsys: pytest.CaptureFixture[str]):
    for choice, made in ((False, silent), (None, silent), (print, print)):
        with reporting(choice) as report:
            assert report is made
    assert capsys.readouterr().err == ""
