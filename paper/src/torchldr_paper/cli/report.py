"""`torchldr report` and `torchldr figures`; the command line mounts them with `register`.

Paths of what was written go to stdout, messages to stderr. Exit codes: 0 done, 1 failed, 2 wrong use.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchldr.cli import Many, say, steps

from ..messages import unknown
from .options import PANEL, DataDir, Results


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("report", rich_help_panel=PANEL, epilog="Example: torchldr report --out report.html")(
        report_command
    )
    app.command(
        "figures",
        cls=Many,
        rich_help_panel=PANEL,
        epilog="Example: torchldr figures --format png --out pictures",
    )(figures_command)


def report_command(
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("out/report.html"),
    results: Results = None,
    data_dir: DataDir = None,
    figures: Annotated[bool, typer.Option(help="Draw the figures.")] = True,
) -> None:
    """One HTML page of everything that was run.

    Tables, figures and each number's run, in one file that needs no network.
    """
    from ..figures import FIGURES
    from ..report.page import report
    from .sweeps import ledger_to_read

    ledger = ledger_to_read(results)
    with steps(len(FIGURES) if figures else 0) as step:
        path = report(ledger, out, figures=figures, data_dir=data_dir, progress=step)
    print(path)
    if not len(ledger):
        say(f"the ledger is empty: {ledger.path}")


def figures_command(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which; all that can be drawn by default.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("out/figures"),
    format: Annotated[list[str] | None, typer.Option(help="png or svg; both by default.")] = None,
    results: Results = None,
    data_dir: DataDir = None,
) -> None:
    """Draw the paper's figures from the ledger.

    Displacement, datasets, accuracy against rank and parameters, learned weights.
    """
    from ..figures import FIGURES, FORMATS, save_figures
    from .sweeps import ledger_to_read

    formats = tuple(format or FORMATS)
    for wrong in set(formats) - set(FORMATS):
        raise typer.BadParameter(f"a figure is saved as {' or '.join(FORMATS)}, got {wrong!r}.")
    for wrong in set(names or ()) - set(FIGURES):
        raise typer.BadParameter(unknown("figure", wrong, FIGURES))
    ledger = ledger_to_read(results)
    with steps(len(names or FIGURES)) as step:
        paths, left_out = save_figures(
            ledger, out, names=names, formats=formats, data_dir=data_dir, progress=step
        )
    for path in paths:
        print(path)
    for name, why in left_out.items():
        say(f"left out: {name}: {why}")
    if names and left_out:  # what was asked for by name
        raise typer.Exit(1)
