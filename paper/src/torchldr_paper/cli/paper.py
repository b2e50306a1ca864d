"""`torchldr paper` and `torchldr train`; the command line mounts them with `register`.

Results go to stdout, messages and progress to stderr. Exit codes: 0 done, 1 failed, 2 wrong use.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import torch
import typer

from torchldr.cli import AsJson, Many
from torchldr.matrices import get_structure

from ..data.registry import lookup
from ..language import sweep_language, train_language
from ..ledger.ledger import Ledger
from ..models.images import build_model
from ..protocol import Protocol, Run
from ..tables.cells import Table
from ..tables.flash import flash_rows
from ..tables.paper import TABLES, get_table
from ..tables.rows import overview, run_rows, table_rows
from ..trainer.logs import no_log, tensorboard_log
from ..trainer.parallel import Backend, Processes, train_images
from ..trainer.progress import progress_on_stderr
from ..trainer.progress import say as _say
from ..trainer.sweep import Library, Report, missing, sweep
from .options import DataDir, Results, keep_table, parse_filters, parse_options
from .printing import columns_of, show_rows, train_columns_of

T = TypeVar("T")

HERE = "here"  # what --ray alone means

Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:0, ...")]
Seeds = Annotated[int, typer.Option(min=1, help="Repeat everything from this many seeds.")]
Quick = Annotated[bool, typer.Option("--quick", help="A small protocol for a laptop, kept apart.")]
Force = Annotated[bool, typer.Option("--force", help="Run again what the ledger has.")]
MaxSeconds = Annotated[
    float | None, typer.Option("--max-seconds", help="Start no further run after this time; resumable.")
]
Jobs = Annotated[
    int,
    typer.Option(min=1, help="So many runs at a time, each in a process of its own: they share the device."),
]
OnRay = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[ADDRESS]",
        help="Runs are tasks of a Ray cluster: host:port, ray://host:port or auto; else one started here.",
    ),
]
Cpus = Annotated[float, typer.Option(min=0, help="With --ray: cores of each run, also fractions.")]
Gpus = Annotated[
    float | None,
    typer.Option(min=0, help="With --ray: GPUs of each run, also fractions; 1 where there are any."),
]
MaxInFlight = Annotated[
    int | None,
    typer.Option("--max-in-flight", min=1, help="With --ray: runs handed out at a time; twice what fits."),
]
Retries = Annotated[
    int, typer.Option(min=0, help="How often a run is begun again whose process or node has died.")
]
LogDir = Annotated[Path | None, typer.Option("--logdir", help="Write TensorBoard scalars here.")]
SaveWeights = Annotated[
    bool, typer.Option("--save-weights", help="Keep each selected network beside the ledger.")
]
Curves = Annotated[
    bool,
    typer.Option(help="Score training and test images every epoch, not only where validation is best."),
]


def _usual(name: str) -> str:
    """The default of a field of the protocol, in words."""

    def words(value: Any) -> str:
        return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)

    full, quick = (words(getattr(protocol, name)) for protocol in (Protocol(), Protocol.quick()))
    return f"{full} by default" if full == quick else f"{full} by default, {quick} with --quick"


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("paper", cls=Sweeping)(paper_command)
    app.command("train", cls=Sweeping)(train_command)


class Sweeping(Many):
    """A command whose `--ray` may stand alone: then a cluster is started here."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        alone = [a == "--ray" and b.startswith("-") for a, b in pairwise([*args, "-"])]
        args = [part for a, fill in zip(args, alone, strict=True) for part in (a, HERE)[: 1 + fill]]
        return super().parse_args(ctx, args)


def paper_command(
    name: Annotated[str, typer.Argument(help="A table or figure; `list` shows all with their state.")],
    show: Annotated[bool, typer.Option("--show", help="Show what the ledger holds, run nothing.")] = False,
    quick: Quick = False,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Rows to take: dataset=, model=, structure=, rank=, fraction=; commas mean or."),
    ] = None,
    seeds: Seeds = 1,
    device: Device = "auto",
    data_dir: DataDir = None,
    results: Results = None,
    max_seconds: MaxSeconds = None,
    jobs: Jobs = 1,
    ray: OnRay = None,
    cpus: Cpus = 1.0,
    gpus: Gpus = None,
    max_in_flight: MaxInFlight = None,
    retries: Retries = 3,
    logdir: LogDir = None,
    save_weights: SaveWeights = False,
    curves: Curves = True,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Run, or resume, one table or figure of the paper and print it beside the paper's values."""
    ledger = ledger_to_read(results) if show or name == "list" else Ledger(results, curves=False)
    if name == "list":
        if only:
            raise typer.BadParameter("--only is for one table; `list` shows all.")
        tables = {key: _quick(table) if quick else table for key, table in TABLES.items()}
        show_rows(overview(ledger, tables), as_json)
        return
    table = _used(lambda: keep_table(_table(name), parse_filters(only or [])))
    table = _quick(table) if quick else table
    if not show:
        runs = [run.with_seed(seed) for seed in range(seeds) for run in table.runs()]
        engine = Engine(device, jobs, ray, cpus, gpus, max_in_flight, retries)
        library = _used(lambda: Library(engine.here, data_dir))
        extras = Extras(max_seconds, logdir, save_weights, force, curves)
        _say_what_data(table, ledger, library)
        report = _sweep(runs, ledger, library, engine, extras)
    if name == "flash":
        show_rows(flash_rows(table, ledger), as_json, title=_title(table, quick))
    else:
        rows = table_rows(table, ledger, seeds)
        show_rows(rows, as_json, title=_title(table, quick), columns=columns_of(rows))
    if not show and (report.unsaved or report.failed):
        raise typer.Exit(1)


def train_command(
    data: Annotated[str, typer.Option(help="A dataset's name, or the path of your own .npz file.")],
    model: Annotated[str, typer.Option(help="shl (single hidden layer), cnn, channels, wide, ...")] = "shl",
    structure: Annotated[
        list[str] | None, typer.Option(help="One or more classes; ldr_sd by default.")
    ] = None,
    rank: Annotated[list[int] | None, typer.Option(help="One or more ranks; 1 by default.")] = None,
    fraction: Annotated[
        list[float] | None, typer.Option(help="Shares of the training images; 1 by default.")
    ] = None,
    option: Annotated[list[str] | None, typer.Option(help="Options of the class: name=value.")] = None,
    hidden: Annotated[int | None, typer.Option(min=1, help="Hidden units; else the input's size.")] = None,
    keep: Annotated[int | None, typer.Option(min=1, help="Prune a dense layer to so many weights.")] = None,
    init: Annotated[str, typer.Option(help="paper or linear.")] = "paper",
    init_std: Annotated[float | None, typer.Option(help="Initial deviation of G and H instead.")] = None,
    output_std: Annotated[float | None, typer.Option(help="Initial deviation of the output layer.")] = None,
    lr: Annotated[list[float] | None, typer.Option(help=f"Learning rates; {_usual('lrs')}.")] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help=f"Trials a learning rate; {_usual('trials')}.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help=f"Epochs; {_usual('epochs')}.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help=f"Images a step; {_usual('batch')}.")] = None,
    quick: Quick = False,
    seeds: Seeds = 1,
    device: Device = "auto",
    data_dir: DataDir = None,
    results: Results = None,
    max_seconds: MaxSeconds = None,
    jobs: Jobs = 1,
    ray: OnRay = None,
    cpus: Cpus = 1.0,
    gpus: Gpus = None,
    max_in_flight: MaxInFlight = None,
    retries: Retries = 3,
    logdir: LogDir = None,
    save_weights: SaveWeights = False,
    curves: Curves = True,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Train by the paper's protocol: any dataset, network, structure and rank, or sweeps over them.

    Your own data is one .npz file with the arrays train_x (rows, or images of h x w or c x h x w), train_y
    (labels from 0), test_x and test_y; optionally classes (an integer) and image_shape (c, h, w) for rows.
    """

    def build() -> list[Run]:
        base = Protocol.quick() if quick else Protocol()
        protocol = dataclasses.replace(
            base,
            lrs=tuple(lr) if lr else base.lrs,
            trials=trials or base.trials,
            epochs=epochs or base.epochs,
            batch=batch or base.batch,
        )
        common = Run(
            data, model, init=init, init_std=init_std, output_std=output_std, hidden=hidden, protocol=protocol
        )
        return [
            dataclasses.replace(
                common,
                structure=name,
                rank=r,
                keep=keep,
                train_fraction=share,
                seed=seed,
                options=parse_options(option or []),
            )
            for seed in range(seeds)
            for name in _separate(structure) or (["dense"] if keep else ["ldr_sd"])
            for r in _ranks(name, rank)
            for share in fraction or [1.0]
        ]

    if not data.endswith(".npz"):
        _used(lambda: lookup(data))
    runs, ledger = _used(build), Ledger(results, curves=False)
    engine = Engine(device, jobs, ray, cpus, gpus, max_in_flight, retries)
    library = _used(lambda: Library(engine.here, data_dir))
    _used_by_images(runs, library)
    report = _sweep(runs, ledger, library, engine, Extras(max_seconds, logdir, save_weights, force, curves))
    rows = run_rows(runs, ledger)
    show_rows(rows, as_json, columns=train_columns_of(rows))
    if report.unsaved or report.failed:
        raise typer.Exit(1)


def ledger_to_read(results: Path | None) -> Ledger:
    """The ledger of a command that writes none: a folder that is named must be there."""
    if results is not None and not results.expanduser().is_dir():
        raise typer.BadParameter(f"{results} is no folder; a run makes it.", param_hint="--results")
    return Ledger(results)


def _ranks(structure: str, ranks: Sequence[int] | None) -> Sequence[int | None]:
    """The ranks to try: a class without a rank is trained once whatever ranks are asked of others."""
    return [*ranks] if ranks and get_structure(structure).ranked else [None]


def _separate(names: Sequence[str] | None) -> list[str]:
    """Names apart that commas join."""
    parts = (part.strip() for joined in names or () for part in joined.split(","))
    return [part for part in parts if part]


def _table(name: str) -> Table:
    try:
        return get_table(name)
    except ValueError as error:
        raise ValueError(f"{error} `list` shows them.") from error


def _quick(table: Table) -> Table:
    """The table by the small protocol; runs that differed in the protocol alone are one."""
    small = table.changed(lambda run: dataclasses.replace(run, protocol=run.protocol.quick()))
    first: dict[str, str] = {}
    cells = [
        cell
        for cell, full in zip(small.cells, table.cells, strict=True)
        if first.setdefault(cell.run.hash, full.run.hash) == full.run.hash
    ]
    return dataclasses.replace(small, cells=tuple(cells))


def _used(build: Callable[[], T]) -> T:
    """What `build` returns; its complaint about an argument is wrong use, exit code 2."""
    try:
        return build()
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(_by_option(str(error))) from error


def _used_by_images(runs: Sequence[Run], library: Library) -> None:
    """Before anything is trained: what the size of the images forbids is wrong use too."""
    if library.source(runs[0].data) == "absent":
        return
    images = library.images(runs[0])
    for run in runs:
        if run.seed == 0:  # other seeds are as large
            _used(partial(build_model, run, images.image_shape, images.outputs, torch.Generator()))


def _by_option(message: str) -> str:
    """A complaint about a field of `Run` or `Protocol` as one about the option that sets it.

    >>> _by_option("Run: train_fraction must lie in (0, 1], got 2.0.")
    '--fraction must lie in (0, 1], got 2.0.'
    """

    def option(match: re.Match[str]) -> str:
        name = {"train_fraction": "fraction", "lrs": "lr"}.get(match[1], match[1])
        return f"--{name.replace('_', '-')} must"

    return re.sub(r"^(?:Run|Protocol): (\w+) must", option, message)


class Extras(NamedTuple):
    """What both commands hand on to `sweep`."""

    max_seconds: float | None
    logdir: Path | None
    save_weights: bool
    force: bool
    curves: bool


class Engine(NamedTuple):
    """Where runs are trained, as the options say."""

    device: str
    jobs: int
    ray: str | None
    cpus: float
    gpus: float | None
    max_in_flight: int | None
    retries: int

    @property
    def here(self) -> str:
        """The device of this process: on Ray it trains nothing."""
        return self.device if self.ray is None else "cpu"

    def backend(self) -> Backend:
        """The backend.

        Raises:
            BadParameter: where Ray is not installed, or for options that exclude each other.
            Exit: where its cluster cannot be used, with a line on stderr.
        """
        if self.ray is None:
            return Processes(self.jobs) if self.jobs > 1 else Backend()
        if self.jobs > 1:
            raise typer.BadParameter("--jobs is for processes of this machine; --ray takes --max-in-flight.")
        from ..trainer.cluster import Cluster

        address = None if self.ray == HERE else self.ray
        try:
            return Cluster(
                address,
                cpus=self.cpus,
                gpus=self.gpus,
                device=self.device,
                max_in_flight=self.max_in_flight,
                retries=self.retries,
            )
        except ImportError as error:
            raise typer.BadParameter(f"--ray: {error}") from error
        except ConnectionError as error:
            _say(str(error))
            raise typer.Exit(1) from error


def _sweep(runs: Sequence[Run], ledger: Ledger, library: Library, engine: Engine, extras: Extras) -> Report:
    """Run what is missing, and say what was done and what could not be."""
    language, here = runs[0].model == "lstm", engine.ray is None and engine.jobs == 1
    if extras.logdir is not None and not here:
        raise typer.BadParameter("--logdir is written where runs are trained here, one after the other.")
    if language and (extras.logdir is not None or extras.save_weights or not extras.curves):
        raise typer.BadParameter("--logdir, --save-weights and --no-curves are not for the language models.")
    try:
        if language and here:  # side by side, all of them at once
            report = sweep_language(
                runs,
                ledger,
                library.device,
                library.data_dir,
                force=extras.force,
                max_seconds=extras.max_seconds,
                say=_say,
            )
        else:
            report = _sweep_apart(runs, ledger, library, engine, extras)
    except KeyboardInterrupt:
        _say("interrupted; the same command goes on from here.")
        raise typer.Exit(130) from None
    _tell(report, ledger)
    if report.absent and not (report.finished or report.present or report.left):
        raise typer.Exit(1)
    return report


def _sweep_apart(
    runs: Sequence[Run], ledger: Ledger, library: Library, engine: Engine, extras: Extras
) -> Report:
    """The same for runs that are trained each by itself."""
    todo = runs if extras.force or extras.save_weights else missing(runs, ledger, library)
    with progress_on_stderr(len(todo)) as progress:
        return sweep(
            runs,
            ledger,
            library,
            backend=engine.backend() if todo else None,
            work=train_language if runs[0].model == "lstm" else train_images,
            force=extras.force,
            max_seconds=extras.max_seconds,
            save_weights=extras.save_weights,
            retries=engine.retries,
            progress=progress,
            log=no_log if extras.logdir is None else tensorboard_log(extras.logdir),
            curves=extras.curves,
        )


def _say_what_data(table: Table, ledger: Ledger, library: Library) -> None:
    """Say which data would be stand-ins, and that the table prefers results on official data."""
    for name in dict.fromkeys(run.data for run in table.runs()):
        if library.source(name) != "stand-in":
            continue
        known = any(ledger.find(run, source="official") for run in table.runs() if run.data == name)
        shown = "; the table shows our results on the official data, as --show does" if known else ""
        _say(f"{name}: its official files are not here, so that this runs on a stand-in{shown}.")


def _tell(report: Report, ledger: Ledger) -> None:
    for message in report.absent.values():
        _say(f"left out: {message}")
    for label, why in report.unsaved.items():
        _say(f"{label}: the run is in the ledger, its weights are not kept: {why}")
    for label, why in report.failed.items():
        _say(f"{label}: failed: {why}")
    if report.left:
        _say(f"{len(report.left)} runs are left; the same command goes on from here.")
    if report.finished:
        _say(f"{len(report.finished)} runs finished, {len(report.present)} were there: {ledger.path}")


def _title(table: Table, quick: bool) -> str:
    return f"{table.title} (quick: not comparable with the paper)" if quick else table.title
