"""Arguments of the commands: what `paper` and `train` share, filters of a table, options of a class."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from torchldr.cli import AsJson

if TYPE_CHECKING:
    from ..tables.cells import Cell, Table

PANEL = "The paper (torchldr-paper)"  # where `torchldr --help` lists the commands
HERE = "here"  # what --ray alone means
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="A data folder; else $TORCHLDR_DATA, else the user's cache.")
]
Results = Annotated[
    Path | None, typer.Option("--results", help="The ledger's folder; else results/ of the checkout or here.")
]
Filters = dict[str, set[str]]


@dataclass(frozen=True)
class Sweep:
    """The options of `paper` and `train`: how runs are trained, where, and what is kept of them."""

    quick: Annotated[bool, typer.Option("--quick", help="A small protocol for a laptop, kept apart.")] = False
    seeds: Annotated[int, typer.Option(min=1, help="Repeat everything from this many seeds.")] = 1
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:0, ...")] = "auto"
    data_dir: DataDir = None
    results: Results = None
    max_seconds: Annotated[
        float | None, typer.Option("--max-seconds", help="Start no further run after this time; resumable.")
    ] = None
    jobs: Annotated[
        int,
        typer.Option(min=1, help="So many runs at a time, each in its own process: they share the device."),
    ] = 1
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="[ADDRESS]",
            help=(
                "Runs are tasks of a Ray cluster: host:port, ray://host:port or auto; else one started here."
            ),
        ),
    ] = None
    cpus: Annotated[float, typer.Option(min=0, help="With --ray: cores of each run, also fractions.")] = 1.0
    gpus: Annotated[
        float | None,
        typer.Option(min=0, help="With --ray: GPUs of each run, also fractions; 1 where there are any."),
    ] = None
    max_in_flight: Annotated[
        int | None,
        typer.Option(
            "--max-in-flight", min=1, help="With --ray: runs handed out at a time; twice what fits."
        ),
    ] = None
    retries: Annotated[
        int, typer.Option(min=0, help="How often a run is begun again whose process or node has died.")
    ] = 3
    logdir: Annotated[Path | None, typer.Option("--logdir", help="Write TensorBoard scalars here.")] = None
    save_weights: Annotated[
        bool, typer.Option("--save-weights", help="Keep each selected network beside the ledger.")
    ] = False
    curves: Annotated[
        bool,
        typer.Option(help="Score training and test images every epoch, not only where validation is best."),
    ] = True
    force: Annotated[bool, typer.Option("--force", help="Run again what the ledger has.")] = False
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


_FILTERS: dict[str, Callable[[Cell], Any]] = {
    "dataset": lambda cell: cell.run.data,
    "model": lambda cell: cell.run.model,
    "structure": lambda cell: cell.run.method,
    "rank": lambda cell: cell.run.rank if cell.matches is None else cell.matches,
    "fraction": lambda cell: cell.run.train_fraction,
}


def parse_filters(texts: Sequence[str]) -> Filters:
    """Filters from `key=value,value`.

    Raises:
        ValueError: for another form or an unknown key.
    """
    filters: Filters = {}
    for text in texts:
        key, mark, wanted = text.partition("=")
        if not mark or key not in _FILTERS:
            raise ValueError(f"--only takes key=value with a key of {', '.join(_FILTERS)}, got {text!r}.")
        filters.setdefault(key, set()).update(_written(key, value) for value in wanted.split(","))
    return filters


def keep_table(table: Table, filters: Filters) -> Table:
    """The cells of a table that pass all filters.

    Raises:
        ValueError: when none does, or none has one of the values, with the values that there are.
    """
    if not filters:
        return table
    cells = tuple(
        cell
        for cell in table.cells
        if all(_text(_FILTERS[key](cell)) in wanted for key, wanted in filters.items())
    )
    known = {key: [_text(v) for v in _in_order({_FILTERS[key](c) for c in table.cells})] for key in filters}
    strange = [f"{key}={v}" for key, wanted in filters.items() for v in sorted(wanted - {*known[key]})]
    if strange or not cells:
        listing = "; ".join(f"{key}: {', '.join(found)}" for key, found in known.items())
        asked = ", ".join(strange) or "what --only asks for"
        raise ValueError(f"no row of {table.name!r} has {asked}. There are {listing}.")
    return replace(table, cells=cells, quoted=())


def parse_options(texts: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    """A class's options from `name=value`; values are JSON where they can be, else text.

    >>> parse_options(["block_size=8", "product=split"])
    (('block_size', 8), ('product', 'split'))
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


def _in_order(values: set[Any]) -> list[Any]:
    return sorted(values, key=lambda value: (value is not None, value))


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
