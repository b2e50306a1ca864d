"""Commands of other packages, and what is said where torchldr-paper is absent."""

from __future__ import annotations

import sys

import pytest
import typer
from typer.main import get_command

from torchldr.cli import plugins


def commands() -> set[str]:
    """The commands that `register` adds to an empty command line."""
    app = typer.Typer()
    app.callback()(lambda: None)
    plugins.register(app)
    return set(get_command(app).commands)


def test_the_commands_of_the_paper_are_found_by_the_entry_point_and_without():
    assert commands() == set(plugins.OF_PAPER)
    with pytest.MonkeyPatch.context() as patch:  # a checkout on the path that is not installed
        patch.setattr(plugins, "entry_points", lambda group: ())
        assert commands() == set(plugins.OF_PAPER)


def test_all_have_a_placeholder(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torchldr_paper.cli", None)
    app = typer.Typer()
    app.callback()(lambda: None)
    plugins.register(app)
    for name in plugins.OF_PAPER:
        with pytest.raises(SystemExit) as exit:
            app([name, "--help", "--any", "thing"])
        assert exit.value.code == 2
        captured = capsys.readouterr()
        assert (captured.out, captured.err.count("\n")) == ("", 1)
