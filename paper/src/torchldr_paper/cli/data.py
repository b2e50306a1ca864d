"""`torchldr data`: what is here of the paper's datasets, and how to get the rest."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from torchldr.cli import AsJson, show

from .options import PANEL, DataDir

data = typer.Typer(no_args_is_help=True, help="The datasets: what is here, and how to get the rest.")


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.add_typer(data, name="data", rich_help_panel=PANEL)


@data.command("list", epilog="Example: torchldr data list --data-dir ~/data")
def data_list(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """The datasets, and what is present here."""
    from torchldr_paper.data import status

    rows = [asdict(row) for row in status(data_dir)]
    show(rows, as_json, columns=("name", "train", "test", "classes", "image_shape", "state", "where"))


@data.command("fetch", epilog="Example: torchldr data fetch cifar10")
def data_fetch(
    name: Annotated[str, typer.Argument(help="A name of `torchldr data list`.")],
    data_dir: DataDir = None,
    url: Annotated[str | None, typer.Option(help="Another address than the owner's.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Download again what is here.")] = False,
) -> None:
    """Download a dataset from its owner: with a progress bar, a checksum, and resuming."""
    from torchldr_paper.data import DataFileError, fetch

    try:
        paths = fetch(name, data_dir, url, force=force)
    except DataFileError:  # what came is damaged: not the user's arguments
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    for path in paths:
        print(path)
