"""Options that commands share, among them how `paper` and `train` train runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from torchldr.cli import AsJson

HERE = "here"  # what --ray alone means
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="A data folder; else $TORCHLDR_DATA, else the user's cache.")
]
Results = Annotated[
    Path | None, typer.Option("--results", help="The ledger's folder; else results/ of the checkout or here.")
]


@dataclass(frozen=True)
class Sweep:
    """The options of `paper` and `train`: how runs are trained, where, and what is kept of them."""

    quick: Annotated[
        bool, typer.Option("--quick", help="A short protocol for a laptop; its results are kept apart.")
    ] = False
    seeds: Annotated[int, typer.Option(min=1, help="Repeat everything from this many seeds.")] = 1
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:0, ...")] = "auto"
    data_dir: DataDir = None
    results: Results = None
    max_seconds: Annotated[
        float | None, typer.Option("--max-seconds", help="Start no further run after this time; resumable.")
    ] = None
    jobs: Annotated[
        int,
        typer.Option(min=1, help="Runs at a time, each in its own process; they share the device."),
    ] = 1
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="[ADDRESS]",
            help=("Run on a Ray cluster: host:port, ray://host:port or auto; without an address, start one."),
        ),
    ] = None
    cpus: Annotated[
        float, typer.Option(min=0, help="With --ray: cores of each run; fractions are allowed.")
    ] = 1.0
    gpus: Annotated[
        float | None,
        typer.Option(
            min=0, help="With --ray: GPUs of each run, or a fraction; by default 1 if the cluster has GPUs."
        ),
    ] = None
    max_in_flight: Annotated[
        int | None,
        typer.Option(
            "--max-in-flight",
            min=1,
            help="With --ray: runs handed out at a time; by default twice what fits.",
        ),
    ] = None
    retries: Annotated[int, typer.Option(min=0, help="Restarts of a run whose process or node died.")] = 3
    logdir: Annotated[Path | None, typer.Option("--logdir", help="Write TensorBoard scalars here.")] = None
    save_weights: Annotated[
        bool, typer.Option("--save-weights", help="Keep each selected network beside the ledger.")
    ] = False
    curves: Annotated[
        bool,
        typer.Option(help="Score training and test images every epoch, not only where validation is best."),
    ] = True
    force: Annotated[bool, typer.Option("--force", help="Repeat runs that are in the ledger.")] = False
    as_json: AsJson = False


def takes_sweep(command: Callable[..., None]) -> Callable[..., None]:
    """A command with an argument `sweep`, whose fields become options of the command."""
    own, shared = (get_type_hints(part, include_extras=True) for part in (command, Sweep))
    given = inspect.signature(command).parameters.values()
    parameters = [part.replace(annotation=own[part.name]) for part in given if part.name != "sweep"]
    parameters += [
        inspect.Parameter(
            f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=shared[f.name]
        )
        for f in fields(Sweep)
    ]

    def run(**values: Any) -> None:
        sweep = Sweep(**{f.name: values.pop(f.name) for f in fields(Sweep)})
        command(**values, sweep=sweep)

    run.__doc__ = command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {part.name: part.annotation for part in parameters}
    return run
