"""Progress of the laboratory's commands."""

from __future__ import annotations

import pytest

from torchldr_paper.cli.progress import Line, steps


def test_steps_are_plain_lines_with_the_time_left(capsys: pytest.CaptureFixture) -> None:
    step = steps(3)
    for name in ("one", "two", "three"):
        step(name)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == ["[1/3] one", "[2/3] two", "[3/3] three"]
    assert [line.endswith(" left") for line in lines] == [True, True, False]


def test_a_line_that_is_written_over_is_for_terminals_alone(capsys: pytest.CaptureFixture) -> None:
    with Line() as line:
        line.show("at work")
        line.say("done")
    assert capsys.readouterr().err == "done\n"
    assert not line.terminal
