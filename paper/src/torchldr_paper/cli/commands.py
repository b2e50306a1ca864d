"""`torchldr data`, `report`, `figures` and `theory`.

Results and paths of what was written go to stdout, messages to stderr. Exit codes: 0 done, 1 failed, 2 wrong
use.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from torchldr.cli import AsJson, say, show

from ..messages import unknown
from .options import DataDir, Results
from .progress import steps

_THEORY_COLUMNS = (
    "model", "hidden", "structure", "rank", "parameters", "vc_bound", "of_dense", "samples", "degree",
    "paper_parameters",
)  # fmt: skip
data = typer.Typer(no_args_is_help=True, help="List the datasets, and download them.")


@data.command("list", epilog="Example: torchldr data list --data-dir ~/data")
def data_list(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the datasets, and which are present here."""
    from torchldr_paper.data import status

    rows = [asdict(row) for row in status(data_dir)]
    show(rows, as_json, columns=("name", "train", "test", "classes", "image_shape", "state", "where"))


@data.command("fetch", epilog="Example: torchldr data fetch cifar10")
def data_fetch(
    name: Annotated[str, typer.Argument(help="A name of `torchldr data list`.")],
    data_dir: DataDir = None,
    url: Annotated[str | None, typer.Option(help="Download from here instead of from the owner.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Download again even if the files are here.")
    ] = False,
) -> None:
    """Download a dataset from its owner and verify its checksum."""
    from torchldr_paper.data import DataFileError, fetch

    try:
        paths = fetch(name, data_dir, url, progress=sys.stderr.isatty(), force=force)
    except DataFileError:  # the download is damaged: not the user's arguments
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    for path in paths:
        print(path)


def report_command(
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("out/report.html"),
    results: Results = None,
    data_dir: DataDir = None,
    figures: Annotated[bool, typer.Option(help="Draw the figures.")] = True,
) -> None:
    """Write one HTML page of all runs.

    Tables, figures and each number's run, in one file that needs no network.
    """
    from ..figures import FIGURES
    from ..report.page import report
    from .sweeps import ledger_to_read

    ledger = ledger_to_read(results)
    step = steps(len(FIGURES) if figures else 0)
    print(report(ledger, out, figures=figures, data_dir=data_dir, progress=step))


def figures_command(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which figures; by default all that can be drawn.")
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
    step = steps(len(names or FIGURES))
    paths, left_out = save_figures(
        ledger, out, names=names, formats=formats, data_dir=data_dir, progress=step
    )
    for path in paths:
        print(path)
    for name, why in left_out.items():
        say(f"left out: {name}: {why}")
    if names and left_out:  # requested by name
        raise typer.Exit(1)


def theory_command(
    model: Annotated[str, typer.Option(help="shl, cnn or both.")] = "both",
    epsilon: Annotated[float, typer.Option(help="Excess error, between 0 and 1.")] = 0.1,
    delta: Annotated[float, typer.Option(help="Probability of failure, between 0 and 1.")] = 0.05,
    agnostic: Annotated[
        bool, typer.Option("--agnostic", help="Samples to come near the best network, even if none is right.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Bound VC dimensions and sample sizes of the paper's networks.

    Upper bounds for dense and structured networks, to compare classes.
    """
    from ..theory.paper import MODELS, rows

    if model not in (*MODELS, "both"):
        raise typer.BadParameter(f"--model must be one of {', '.join(MODELS)}, both, got {model!r}.")
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if not 0 < value < 1:
            raise typer.BadParameter(f"--{name} must lie between 0 and 1, got {value}.")
    found = rows(MODELS if model == "both" else (model,), epsilon, delta, agnostic=agnostic)
    asked = {"epsilon": epsilon, "delta": delta, "agnostic": agnostic}
    show({**asked, "rows": found} if as_json else found, as_json, columns=_THEORY_COLUMNS)
    if as_json:
        return
    say(
        "Upper bounds, to compare classes by. Parameters are those of that network.\n"
        f"Samples: enough for error {epsilon:g} with probability {1 - delta:g},\n"
        f"{'whatever the labels' if agnostic else 'where the class fits the labels'}."
    )
