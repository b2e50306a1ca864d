"""The commands that this package adds to `torchldr`: paper, train, data, report, figures, theory."""

from __future__ import annotations

import typer

from . import data, paper, report, theory

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line; the entry point `torchldr.commands` leads here."""
    for part in (paper, data, report, theory):
        part.register(app)
