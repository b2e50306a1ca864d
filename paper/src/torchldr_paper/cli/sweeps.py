"""What `torchldr paper` and `torchldr train` do: their arguments made into runs, trained and shown."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import typer

from torchldr.cli import say, show
from torchldr.matrices import get_structure

from ..ledger.ledger import Ledger
from ..models.images import build_model
from ..protocol import Run
from ..tables.cells import Cell, Table
from ..tables.paper import get_table
from ..tables.rows import Row, heading, tells
from ..trainer.parallel import Backend, Processes, train_images
from ..trainer.progress import Progress, no_log, tensorboard_log
from ..trainer.sweep import Library, Report, missing, sweep
from .options import HERE, Sweep
from .progress import Line

T = TypeVar("T")


def ledger_to_read(results: Path | None, *, curves: bool = True) -> Ledger:
    """The ledger of a command that only reads: a given folder must exist."""
    if results is not None and not results.expanduser().is_dir():
        raise typer.BadParameter(f"{results} is not a folder; a run creates it.", param_hint="--results")
    return Ledger(results, curves=curves)


def ranks_of(structure: str, ranks: Sequence[int] | None) -> Sequence[int | None]:
    """The ranks to try; a class without a rank is trained once, whatever the ranks of others."""
    return [*ranks] if ranks and get_structure(structure).ranked else [None]


def find_table(name: str) -> Table:
    try:
        return get_table(name)
    except ValueError as error:
        raise ValueError(f"{error} `list` shows them.") from error


def well_used(build: Callable[[], T]) -> T:
    """The result of `build`; an error about an argument is wrong use, exit code 2."""
    try:
        return build()
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(_by_option(str(error))) from error


def check_images(runs: Sequence[Run], library: Library) -> None:
    """Before training: a network that the size of the images does not allow is wrong use too."""
    if library.source(runs[0].data) == "absent":
        return
    images = library.images(runs[0])
    for run in runs:
        if run.seed == 0:  # other seeds are as large
            well_used(partial(build_model, run, images.image_shape, images.outputs, torch.Generator()))


def _by_option(message: str) -> str:
    """An error about a field of `Run` or `Protocol`, rewritten for the option that sets it.

    >>> _by_option("Run: train_fraction must lie in (0, 1], got 2.0.")
    '--fraction must lie in (0, 1], got 2.0.'
    """

    def option(match: re.Match[str]) -> str:
        name = {"train_fraction": "fraction", "lrs": "lr"}.get(match[1], match[1])
        return f"--{name.replace('_', '-')} must"

    return re.sub(r"^(?:Run|Protocol): (\w+) must", option, message)


def library_of(sweep: Sweep) -> Library:
    """The data on the device of this process; on Ray it trains nothing."""
    return well_used(lambda: Library("cpu" if sweep.ray else sweep.device, sweep.data_dir))


def backend_of(sweep: Sweep, language: bool) -> Backend:
    """Where runs are trained; if a cluster cannot be used, a message on stderr says why."""
    if sweep.ray is None and sweep.jobs == 1:
        from ..language.sweep import SideBySide

        return SideBySide(sweep.max_seconds, say) if language else Backend()
    if sweep.ray is None:
        return Processes(sweep.jobs)
    if sweep.jobs > 1:
        raise typer.BadParameter("--jobs is for processes of this machine; --ray takes --max-in-flight.")
    from ..trainer.cluster import Cluster

    try:
        return Cluster(
            None if sweep.ray == HERE else sweep.ray,
            cpus=sweep.cpus,
            gpus=sweep.gpus,
            device=sweep.device,
            max_in_flight=sweep.max_in_flight,
            retries=sweep.retries,
        )
    except ImportError as error:
        raise typer.BadParameter(f"--ray: {error}") from error
    except ConnectionError as error:
        say(str(error))
        raise typer.Exit(1) from error


def train_missing(runs: Sequence[Run], ledger: Ledger, library: Library, sweep: Sweep) -> Report:
    """Run what is missing, and say what was done and what could not be."""
    language, here = runs[0].model == "lstm", sweep.ray is None and sweep.jobs == 1
    if sweep.logdir is not None and not here:
        raise typer.BadParameter("--logdir is written where runs are trained here, one after the other.")
    if language and (sweep.logdir is not None or sweep.save_weights or not sweep.curves):
        raise typer.BadParameter("--logdir, --save-weights and --no-curves are not for the language models.")
    try:
        report = _sweep(runs, ledger, library, sweep, language)
    except KeyboardInterrupt:
        say("interrupted; the same command goes on from here.")
        raise typer.Exit(130) from None
    for message in report.absent.values():
        say(f"left out: {message}")
    for label, why in report.unsaved.items():
        say(f"{label}: the run is in the ledger, but its weights were not kept: {why}")
    for label, why in report.failed.items():
        say(f"{label}: failed: {why}")
    if report.left:
        say(f"{len(report.left)} runs are left; the same command goes on from here.")
    if report.finished:
        say(f"{len(report.finished)} runs finished, {len(report.present)} were already in {ledger.path}")
    if report.absent and not (report.finished or report.present or report.left):
        raise typer.Exit(1)
    return report


def exit_where_incomplete(report: Report | None) -> None:
    """Exit with 1 where runs failed or their weights could not be kept."""
    if report is not None and (report.unsaved or report.failed):
        raise typer.Exit(1)


def _sweep(runs: Sequence[Run], ledger: Ledger, library: Library, chosen: Sweep, language: bool) -> Report:
    from ..language.sweep import train_language

    todo = runs if chosen.force or chosen.save_weights else missing(runs, ledger, library)
    with Line() as line:
        progress = Progress(len(todo), line.say, line.show if line.terminal else None)
        return sweep(
            runs,
            ledger,
            library,
            backend=backend_of(chosen, language) if todo else None,
            work=train_language if language else train_images,
            force=chosen.force,
            max_seconds=chosen.max_seconds,
            save_weights=chosen.save_weights,
            retries=chosen.retries,
            progress=progress,
            log=no_log if chosen.logdir is None else tensorboard_log(chosen.logdir),
            curves=chosen.curves,
        )


def say_what_data(table: Table, ledger: Ledger, library: Library) -> None:
    """Say which data would be stand-ins, and that the table prefers results on official data."""
    for name in dict.fromkeys(run.data for run in table.runs()):
        if library.source(name) != "stand-in":
            continue
        known = any(ledger.find(run, source="official") for run in table.runs() if run.data == name)
        shown = "; the table shows our results on the official data, as --show does" if known else ""
        say(f"{name}: official files not found, using a stand-in{shown}.")


# Filters of a table, and options of a class.


Filters = dict[str, set[str]]
_FILTERS: dict[str, Callable[[Cell], Any]] = {
    "dataset": lambda cell: cell.run.data,
    "model": lambda cell: cell.run.model,
    "structure": lambda cell: cell.run.method,
    "rank": lambda cell: cell.run.rank if cell.matches is None else cell.matches,
    "fraction": lambda cell: cell.run.train_fraction,
}


def parse_filters(texts: Sequence[str]) -> Filters:
    """Filters from `key=value,value`."""
    filters: Filters = {}
    for text in texts:
        key, mark, wanted = text.partition("=")
        if not mark or key not in _FILTERS:
            raise ValueError(f"--only takes key=value with a key of {', '.join(_FILTERS)}, got {text!r}.")
        filters.setdefault(key, set()).update(_written(key, value) for value in wanted.split(","))
    return filters


def keep_table(table: Table, filters: Filters) -> Table:
    """The cells of a table that pass all filters; if none does, the error lists the existing values."""
    if not filters:
        return table
    cells = tuple(
        cell
        for cell in table.cells
        if all(_text(_FILTERS[key](cell)) in wanted for key, wanted in filters.items())
    )
    known = {}
    for key in filters:
        values = {_FILTERS[key](cell) for cell in table.cells}
        known[key] = [_text(v) for v in sorted(values, key=lambda value: (value is not None, value))]
    strange = [f"{key}={v}" for key, wanted in filters.items() for v in sorted(wanted - {*known[key]})]
    if strange or not cells:
        listing = "; ".join(f"{key}: {', '.join(found)}" for key, found in known.items())
        asked = ", ".join(strange) or "what --only asks for"
        raise ValueError(f"no row of {table.name!r} has {asked}. There are {listing}.")
    return replace(table, cells=cells, quoted=())


def parse_options(texts: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    """A class's options from `name=value`; values are JSON where they can be, else text.

    >>> parse_options(["block_size=8", "normalise=false"])
    (('block_size', 8), ('normalise', False))
    """
    pairs = []
    for text in texts:
        name, mark, value = text.partition("=")
        if not mark or not name:
            raise ValueError(f"--option takes name=value, got {text!r}.")
        try:
            pairs.append((name, json.loads(value.lower() if value in ("True", "False") else value)))
        except (ValueError, RecursionError):
            pairs.append((name, value))
    return tuple(pairs)


def _written(key: str, value: str) -> str:
    """A value as tables print it, in the form of `_text`: 50% is 0.5, None is -."""
    if key == "fraction":
        with contextlib.suppress(ValueError):
            return _text(float(value.removesuffix("%")) / (100 if value.endswith("%") else 1))
    return "-" if value == "None" else value


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


# Rows on stdout.


PAPER_COLUMNS = (
    "dataset", "model", "structure", "rank", "fraction", "init", "test", "paper", "difference", "deviation",
    "parameters", "paper_parameters", "data", "seconds", "seeds", "lr", "diverged", "source",
)  # fmt: skip
FLASH_COLUMNS = (
    "dataset", "model", "structure", "kilobytes", "test", "deviation", "rank", "hidden", "bytes",
    "validation", "float", "trained", "lr", "source", "state",
)  # fmt: skip
ONLY_IF_VARIED = ("model", "fraction", "init")
_ONLY_IF_ANY = ("paper_parameters", "deviation", "difference", "diverged", "hidden")
TRAIN_COLUMNS = (
    "dataset", "model", "structure", "rank", "hidden", "fraction", "init", "epochs", "parameters",
    "validation", "test", "deviation", "data", "seconds", "seeds", "lr", "diverged",
)  # fmt: skip


def columns_of(rows: Sequence[Row], names: Sequence[str], only_if_varied: Sequence[str] = ()) -> list[str]:
    """The columns that carry information about these rows."""
    dull = {name for name in only_if_varied if not tells(name, (row[name] for row in rows))}
    dull |= {name for name in _ONLY_IF_ANY if not any(row[name] for row in rows)}
    return [name for name in names if name not in dull]


def show_rows(
    rows: Sequence[Row], as_json: bool, *, title: str | None = None, columns: Sequence[str] | None = None
) -> None:
    """Print rows to stdout."""
    named = list(columns or (rows[0] if rows else ()))
    headings = {name: heading(rows) if name == "test" else name for name in named}
    show(list(rows), as_json, title=title, columns=named, headings=headings, cell=_cell)


def _cell(name: str, value: Any) -> str | None:
    match value:
        case float() if name == "fraction":
            return f"{value:.0%}"
        case float() if name == "seconds":
            return f"{value:,.1f}"
        case float() if name == "difference":
            return f"{value:+.2f}"
        case float():
            return f"{value:.2f}"
        case list():
            return ", ".join("-" if item is None else f"{item:g}" for item in value) or "-"
    return None
