"""`torchldr paper` and `torchldr train`.

Results go to stdout, messages and progress to stderr. Exit codes: 0 done, 1 failed, 2 wrong use. The work is
in `sweeps`, which imports the trainer and so torch; a command imports it only when it runs.
"""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Annotated, Any

import typer

from torchldr.cli import Many

from .options import HERE, Sweep, takes_sweep


class Sweeping(Many):
    """A command whose `--ray` may stand alone: then a cluster is started here."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        alone = [a == "--ray" and b.startswith("-") for a, b in pairwise([*args, "-"])]
        args = [part for a, fill in zip(args, alone, strict=True) for part in (a, HERE)[: 1 + fill]]
        return super().parse_args(ctx, args)


@takes_sweep
def paper_command(
    name: Annotated[
        str,
        typer.Argument(help="A table or figure; `list` shows all, `check` compares all with the paper."),
    ],
    show: Annotated[bool, typer.Option("--show", help="Show what the ledger holds, run nothing.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Rows to take: dataset=, model=, structure=, rank=, fraction=; commas mean or."),
    ] = None,
    table: Annotated[
        list[str] | None, typer.Option("--table", help="With `check`: tables to compare; all by default.")
    ] = None,
    *,
    sweep: Sweep,
) -> None:
    """Run one table or figure of the paper, or resume it.

    Prints our values beside the paper's. Runs in the ledger are not repeated.
    `check` runs nothing: it says for each cell whether ours is at or above the
    paper's, within noise or below.
    """
    from ..ledger.ledger import Ledger
    from ..tables.flash import flash_rows
    from ..tables.paper import TABLES
    from ..tables.rows import overview, table_rows
    from . import checking, sweeps

    nothing_runs = show or name in ("list", "check")
    read = sweeps.ledger_to_read if nothing_runs else Ledger
    ledger = read(sweep.results, curves=False)
    if name in ("list", "check") and only:
        raise typer.BadParameter(f"--only is for one table; `{name}` shows all.")
    if table and name != "check":
        raise typer.BadParameter("--table is for `check`.")
    if name == "check":
        checking.show_check(ledger, table or [], sweep.as_json)
        return
    if name == "list":
        tables = {key: part.quick if sweep.quick else part for key, part in TABLES.items()}
        sweeps.show_rows(overview(ledger, tables), sweep.as_json)
        return
    chosen = sweeps.well_used(
        lambda: sweeps.keep_table(sweeps.find_table(name), sweeps.parse_filters(only or []))
    )
    chosen = chosen.quick if sweep.quick else chosen
    report = None
    if not show:
        runs = [run.with_seed(seed) for seed in range(sweep.seeds) for run in chosen.runs()]
        library = sweeps.library_of(sweep)
        sweeps.say_what_data(chosen, ledger, library)
        report = sweeps.train_missing(runs, ledger, library, sweep)
    title = f"{chosen.title} (quick: not comparable with the paper)" if sweep.quick else chosen.title
    if name == "flash":
        sweeps.show_rows(flash_rows(chosen, ledger), sweep.as_json, title=title, columns=sweeps.FLASH_COLUMNS)
    else:
        rows = table_rows(chosen, ledger, sweep.seeds)
        columns = sweeps.columns_of(rows, sweeps.PAPER_COLUMNS, sweeps.ONLY_IF_VARIED)
        sweeps.show_rows(rows, sweep.as_json, title=title, columns=columns)
    sweeps.exit_where_incomplete(report)


@takes_sweep
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
    keep: Annotated[int | None, typer.Option(min=1, help="Prune a dense layer to this many weights.")] = None,
    init: Annotated[str, typer.Option(help="paper or linear.")] = "paper",
    init_std: Annotated[
        float | None, typer.Option(help="Initial deviation of G and H, instead of --init.")
    ] = None,
    output_std: Annotated[float | None, typer.Option(help="Initial deviation of the output layer.")] = None,
    lr: Annotated[
        list[float] | None,
        typer.Option(help="Learning rates; 0.0002 0.0005 0.001 0.002 by default, 0.0005 0.002 with --quick."),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Trials a learning rate; 3 by default, 1 with --quick.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs; 50 by default, 15 with --quick.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Images a step; 50 by default.")] = None,
    *,
    sweep: Sweep,
) -> None:
    """Train by the paper's protocol, on your own data too.

    Any dataset, network, structure and rank, or sweeps over them.

    Your own data is one .npz file with the arrays train_x (rows, or images of
    h x w or c x h x w), train_y (labels from 0), test_x and test_y; optionally
    classes (an integer) and image_shape (c, h, w) for rows.
    """
    from ..data.registry import lookup
    from ..ledger.ledger import Ledger
    from ..protocol import Protocol, Run
    from ..tables.rows import run_rows
    from . import sweeps

    def build() -> list[Run]:
        base = Protocol.quick() if sweep.quick else Protocol()
        protocol = dataclasses.replace(
            base,
            lrs=tuple(lr) if lr else base.lrs,
            trials=trials or base.trials,
            epochs=epochs or base.epochs,
            batch=batch or base.batch,
        )
        starts = {"init": init, "init_std": init_std, "output_std": output_std}
        common: dict[str, Any] = {**starts, "hidden": hidden, "keep": keep, "protocol": protocol}
        chosen = sweeps.parse_options(option or [])
        apart = (part.strip() for joined in structure or () for part in joined.split(","))
        names = [part for part in apart if part]
        return [
            Run(data, model, name, r, chosen, train_fraction=share, seed=seed, **common)
            for seed in range(sweep.seeds)
            for name in names or (["dense"] if keep else ["ldr_sd"])
            for r in sweeps.ranks_of(name, rank)
            for share in fraction or [1.0]
        ]

    if not data.endswith(".npz"):
        sweeps.well_used(lambda: lookup(data))
    runs, ledger = sweeps.well_used(build), Ledger(sweep.results, curves=False)
    library = sweeps.library_of(sweep)
    sweeps.check_images(runs, library)
    report = sweeps.train_missing(runs, ledger, library, sweep)
    rows = run_rows(runs, ledger)
    sweeps.show_rows(rows, sweep.as_json, columns=sweeps.columns_of(rows, sweeps.TRAIN_COLUMNS))
    sweeps.exit_where_incomplete(report)
