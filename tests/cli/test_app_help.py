"""Help, completion and progress: one screen, groups, examples, no torch, no control characters in a pipe."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import typer
from typer.main import get_command

from torchldr import cli
from torchldr.cli import bar, options

HEAVY = {"torch", "numpy", "scipy", "matplotlib"}


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command, those of groups too."""
    for name, command in group.commands.items():
        yield (*path, name)
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))


COMMANDS = list(commands(get_command(cli.command_line())))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """What a command prints to a screen of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as exit:
            cli.main(arguments)
        captured = capsys.readouterr()
        assert (exit.value.code, captured.err) == (0, "")
        return captured.out

    return run


def test_help_fits_a_screen_and_groups_the_commands(run):
    out = run("--help")
    assert len(out.splitlines()) <= 40
    assert all(len(line) <= 80 for line in out.splitlines())
    places = [out.index(panel) for panel in (options.LOOK, options.MODELS, options.PAPER)]
    assert places == sorted(places)
    assert "Commands" not in out  # one that stands in no group
    for path in COMMANDS:
        assert re.search(rf"^│ {path[0]} ", out, re.MULTILINE)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_an_example_that_it_accepts(run, path):
    out = run(*path, "--help")
    if path == ("data",):
        assert "list" in out
        return
    line = re.search(r"Example: torchldr (.+?)\s*\n\s*\n", out, re.DOTALL)
    assert line, out
    words = line[1].split()
    assert tuple(words[: len(path)]) == path
    command = get_command(cli.command_line())
    for name in path:
        command = command.commands[name]
    with typer.Context(command, info_name=path[-1]) as context:
        command.parse_args(context, words[len(path) :])  # raises for what there is not


def test_info_fits_a_screen(run):
    assert len(run("info").splitlines()) <= 40


def test_help_and_completion_load_no_torch():
    """`torchldr --help` and what a shell asks for, each in an interpreter of its own."""
    asked = {"_TORCHLDR_COMPLETE": "complete_bash", "COMP_WORDS": "torchldr com", "COMP_CWORD": "1"}
    command = [sys.executable, "-X", "importtime", "-m", "torchldr"]
    helped = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True)
    completed = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **asked})
    assert "Your model" in helped.stdout
    assert completed.stdout.split() == ["compress"]
    for ran in (helped, completed):
        loaded = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
        assert "torchldr.cli.app" in loaded
        assert "torchldr_paper.cli.paper" in loaded
        assert not loaded & HEAVY


def test_completion_can_be_shown_for_bash(run, monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    assert "_TORCHLDR_COMPLETE=complete_bash" in run("--show-completion", "bash")


LAZY = """
import sys
sys.argv[0] = "torchldr"
import torchldr, torchldr_paper
assert "torch" not in sys.modules
assert all(getattr(torchldr, name) is not None for name in torchldr.__all__)
assert all(getattr(torchldr_paper, name) is not None for name in torchldr_paper.__all__)
assert torchldr.nn.StructuredLinear is torchldr.StructuredLinear
assert "ldr_sd" in torchldr.structures()
"""


def test_every_name_is_there_in_the_process_of_a_command():
    ran = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def all_of(terminal: int) -> str:
    """What was written to a terminal that is closed on the other side."""
    parts = []
    with suppress(OSError):  # how Linux says that there is no more
        while part := os.read(terminal, 4096):
            parts.append(part)
    os.close(terminal)
    return b"".join(parts).decode()


def test_a_bar_shows_stages_on_a_terminal_and_nothing_in_a_pipe(monkeypatch, capsys):
    with bar() as report:
        report("projecting", 1, 2)
    assert capsys.readouterr().err == ""
    reading, writing = pty.openpty()
    with os.fdopen(writing, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        with bar() as report:
            for done in range(3):
                report("looking at [0]", done, 3)
            report("projecting 0", 1, 2)
    shown = all_of(reading)
    assert "projecting 0" in shown
    assert "1/2" in shown
