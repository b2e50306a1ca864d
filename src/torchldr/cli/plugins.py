"""Commands of other packages: those of torchldr-paper, and of whoever joins the entry point group.

    [project.entry-points."torchldr.commands"]
    mine = "my_package.cli:register"      # a function of the typer.Typer that holds the commands

torchldr-paper has such an entry point too, but is tried even if it is not listed: a checkout that is on the
path without being installed lists none. If it is absent, its commands say what to install, exit code 2.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

import typer

from .options import PAPER as PANEL
from .printing import say

GROUP = "torchldr.commands"
PAPER = EntryPoint("paper", "torchldr_paper.cli:register", GROUP)
OF_PAPER = ("paper", "train", "data", "report", "figures", "theory", "bench", "demo")


def register(app: typer.Typer) -> None:
    """Add the commands of the packages that are here, and placeholders for those of torchldr-paper."""
    found = [entry for entry in entry_points(group=GROUP) if entry.value != PAPER.value]
    for entry in (*found, PAPER):
        try:
            add = entry.load()
        except ImportError as error:
            _leave_out(app, entry, error)
        else:
            add(app)


def _leave_out(app: typer.Typer, entry: EntryPoint, error: ImportError) -> None:
    if entry is not PAPER:
        say(f"torchldr: the commands of {entry.module} are left out: {error}")
        return
    absent = isinstance(error, ModuleNotFoundError) and error.name in ("torchldr_paper", PAPER.module)
    why = "which is not installed: pip install torchldr-paper" if absent else f"which fails: {error}"
    for name in OF_PAPER:
        _add_placeholder(app, name, why)


def _add_placeholder(app: typer.Typer, name: str, why: str) -> None:
    """A command that takes any arguments and says why it is not here."""

    @app.command(
        name,
        help="Needs the package torchldr-paper.",
        rich_help_panel=PANEL,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def missing() -> None:
        say(f"torchldr: `{name}` belongs to torchldr-paper, {why}")
        raise typer.Exit(2)
