"""The commands that this package adds to `torchldr`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from torchldr.cli import Many

from .bench import bench_command
from .commands import data, figures_command, report_command, theory_command
from .demo import demo_command
from .paper import Sweeping, paper_command, train_command

__all__ = ["register"]

PANEL = "The paper (torchldr-paper)"  # where `torchldr --help` lists the commands
COMMANDS: dict[str, tuple[Callable[..., None], Any, str]] = {
    "paper": (paper_command, Sweeping, "rectangles --quick"),
    "train": (train_command, Sweeping, "--data my.npz --structure ldr_sd low_rank --rank 1 16"),
    "report": (report_command, None, "--out report.html"),
    "figures": (figures_command, Many, "--format png --out pictures"),
    "theory": (theory_command, None, "--model shl --epsilon 0.05"),
    "bench": (bench_command, Many, "--structure ldr_sd --n 1024 8192 --rank 1 16 --plot speed.png"),
    "demo": (demo_command, None, "--steps 100 --out demo.png"),
}


def register(app: typer.Typer) -> None:
    """Add the commands to the command line; the entry point `torchldr.commands` leads here."""
    for name, (command, kind, example) in COMMANDS.items():
        epilog = f"Example: torchldr {name} {example}"
        app.command(name, cls=kind, rich_help_panel=PANEL, epilog=epilog)(command)
    app.add_typer(data, name="data", rich_help_panel=PANEL)
