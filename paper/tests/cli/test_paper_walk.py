"""How many files lie between `torchldr paper rectangles` and a product of the library in a training step."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import torchldr
import torchldr_paper
from torchldr_paper import Protocol
from torchldr_paper.cli import register
from torchldr_paper.models.network import StackedLayer

OURS = tuple(str(Path(package.__file__).parent) for package in (torchldr, torchldr_paper))
MOST = 12


def test_the_walk_to_a_training_step_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHLDR_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    brief = Protocol(epochs=1, lrs=(0.001,), trials=1, train_limit=120, test_limit=50)
    monkeypatch.setattr(Protocol, "quick", classmethod(lambda cls: brief))
    walks: list[list[str]] = []
    multiply = StackedLayer.__call__

    def noted(self: StackedLayer, *arguments: Any) -> Any:
        frame, files = sys._getframe(1), []
        while frame is not None:
            files.append(frame.f_code.co_filename)
            frame = frame.f_back
        walks.append([*dict.fromkeys(file for file in files if file.startswith(OURS))])
        return multiply(self, *arguments)

    monkeypatch.setattr(StackedLayer, "__call__", noted)
    app = typer.Typer(pretty_exceptions_enable=False)
    register(app)
    arguments = ["paper", "rectangles", "--quick", "--only", "structure=ldr_sd", "--device", "cpu"]
    assert CliRunner().invoke(app, [*arguments, "--results", str(tmp_path)]).exit_code == 0
    # The command line's own file stands in front of these, the layer's behind.
    assert {Path(file).name for file in walks[0]} >= {"paper.py", "sweep.py", "training.py", "fleet.py"}
    assert 1 + len(walks[0]) + 1 <= MOST, walks[0]
