"""Commands of other packages, and what is said where torchldr-paper is absent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from torchldr.cli import plugins

MAIN = "from torchldr.__main__ import main; main()"


def run(code: str, *arguments: str, path: Path | None = None) -> tuple[int, str, str]:
    """A fresh interpreter: exit code, stdout, stderr."""
    before = os.environ.get("PYTHONPATH")
    folders = [str(path) if path else "", before or ""]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment
    )
    return ran.returncode, ran.stdout, ran.stderr


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


def test_without_the_package_a_line_says_what_to_install():
    code, out, err = run(f"import sys; sys.modules['torchldr_paper'] = None; {MAIN}", "paper", "list")
    assert (code, out) == (2, "")
    assert err == (
        "torchldr: `paper` belongs to torchldr-paper, which is not installed: pip install torchldr-paper\n"
    )


def test_all_six_have_a_placeholder(monkeypatch, capsys):
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


def test_a_package_that_fails_is_named():
    broken = "import sys; sys.modules['torchldr_paper.cli.paper'] = None; "
    code, out, err = run(broken + MAIN, "report")
    assert (code, out) == (2, "")
    assert "torchldr-paper, which fails: " in err
    assert "torchldr_paper.cli.paper" in err


@pytest.mark.parametrize("works", [True, False])
def test_another_package_adds_a_command(tmp_path: Path, works: bool):
    (tmp_path / "greetings.py").write_text(
        "def register(app):\n    app.command('hello')(lambda: print('hello there'))\n"
        if works
        else "import nothing_of_this_name\n"
    )
    metadata = tmp_path / "greetings-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: greetings\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[torchldr.commands]\nhello = greetings:register\n")
    code, out, err = run(MAIN, "hello" if works else "structures", path=tmp_path)
    assert code == 0
    if works:
        assert (out, err) == ("hello there\n", "")
    else:
        assert err.startswith("torchldr: the commands of greetings are left out: No module named")
