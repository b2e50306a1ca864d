"""The command line in interpreters of its own: as a module, without packages that it needs, with others'."""

from __future__ import annotations

from pathlib import Path

import pytest

import torchldr

from ..processes import Case, in_forks

MAIN = "from torchldr.__main__ import main; main()"
MODULE = "import runpy; runpy.run_module('torchldr', run_name='__main__', alter_sys=True)"


def without(package: str) -> str:
    return f"import sys; sys.modules[{package!r}] = None; {MAIN}"


def other(folder: Path, source: str) -> str:
    """The command line with an installed package that registers `hello`."""
    metadata = folder / "greetings-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "greetings.py").write_text(source)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: greetings\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[torchldr.commands]\nhello = greetings:register\n")
    return f"import sys; sys.path.insert(0, {str(folder)!r}); {MAIN}"


GREETS = "def register(app):\n    app.command('hello')(lambda: print('hello there'))\n"


def test_fresh_interpreters(tmp_path: Path):
    module, typer, rich, paper, broken, greets, fails, closed = in_forks(
        [
            Case(MODULE, ["--version"]),
            Case(without("typer")),
            Case(without("rich")),
            Case(without("torchldr_paper"), ["paper", "list"]),
            Case(without("torchldr_paper.cli.paper"), ["report"]),
            Case(other(tmp_path / "good", GREETS), ["hello"]),
            Case(other(tmp_path / "bad", "import nothing_of_this_name\n"), ["structures"]),
            Case(f"import sys; sys.stdout = None; {MAIN}", ["structures"]),
        ]
    )
    assert module == (0, f"torchldr {torchldr.__version__}\n", "")
    for package, ran in (("typer", typer), ("rich", rich)):
        message = f"ImportError: the torchldr command needs {package}; pip install torchldr[cli]\n"
        assert ran == (1, "", message)
    absent = (
        "torchldr: `paper` belongs to torchldr-paper, which is not installed: pip install torchldr-paper\n"
    )
    assert paper == (2, "", absent)
    assert (broken.code, broken.out) == (2, "")
    assert "torchldr-paper, which fails: " in broken.err
    assert "torchldr_paper.cli.paper" in broken.err
    assert greets == (0, "hello there\n", "")
    assert closed == (0, "", "")
    assert fails.code == 0
    assert fails.err.startswith("torchldr: the commands of greetings are left out: No module named")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("command", ["--version", "--help", "structures"])
def test_what_cannot_be_written_is_one_line_and_what_nobody_reads_none(command: str):
    full = "import sys; sys.stdout = open('/dev/full', 'w')"
    unread = "import os, sys; ends = os.pipe(); os.close(ends[0]); sys.stdout = open(ends[1], 'w')"
    ran = in_forks([Case(f"{stdout}; {MAIN}", [command]) for stdout in (full, unread)])
    assert ran == [(1, "", "torchldr: [Errno 28] No space left on device\n"), (1, "", "")]
