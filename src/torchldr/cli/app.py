"""`torchldr ...`: thin calls into the library.

A command reads its arguments, calls one function and shows what it returns with `show` (a table, or
JSON with --json). Results go to stdout, messages to stderr with `say`. Exit codes: 0 done, 1 failed,
2 wrong use. A command imports what it needs when it runs, so that --help stays quick and only the command
that uses an optional package needs it.

To add a command, write a function with `@command` here, or in a module beside this file and name it in
`_COMMANDS`; another package does so by an entry point, see `plugins`. An error that a user can mend is a
ValueError, TypeError, OSError or ImportError with a sentence: it becomes one line and exit code 1. For a
wrong argument raise `typer.BadParameter`, which is exit code 2.
"""

from __future__ import annotations

import functools
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..version import __version__
from . import compress, export, forecast, plugins
from .options import LOOK, MODELS, AsJson, command, wrong_use
from .printing import say, show


class _Commands(TyperGroup):
    """Turns an error that a user can mend into one line on stderr and exit code 1."""

    def make_context(self, *args: Any, **more: Any) -> Any:  # prints --help and --version
        with _one_line():
            return super().make_context(*args, **more)

    def invoke(self, ctx: Any) -> Any:
        with _one_line(ctx.params.get("traceback")):
            return super().invoke(ctx)


@contextmanager
def _one_line(traceback: bool | None = False) -> Iterator[None]:
    try:
        try:
            yield
        finally:
            _flush()
    except BrokenPipeError:  # the reader has closed the pipe: typer ends quietly
        raise
    except (ValueError, TypeError, OSError, ImportError) as error:
        if traceback:
            raise
        say(f"torchldr: {error}")
        raise typer.Exit(1) from error


def _flush() -> None:
    """Flush stdout; if that fails, raise now, and not again when Python ends."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            sys.stdout.close()
        raise


app = typer.Typer(
    name="torchldr",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Weight matrices with low displacement rank for PyTorch.",
    epilog="Options of a command: torchldr compress --help",
)


# Commands of modules beside this file: the panel, an example, and the function.
_COMMANDS = {
    "analyze": (MODELS, "model.safetensors --budget 0.1 --save-plan plan.json", compress.analyze_command),
    "compress": (MODELS, "model.safetensors --budget 0.1 --out small", compress.compress_command),
    "forecast": (
        MODELS,
        "data.csv --past 336 --horizon 96 --rank 4 --plot forecast.png",
        forecast.forecast_command,
    ),
    "export": (MODELS, "net.py:model --to c --input 1 784 --out firmware", export.export_command),
}


@functools.cache
def command_line() -> typer.Typer:
    """All commands, with those of other packages, which the first call looks for."""
    for name, (panel, example, function) in _COMMANDS.items():
        command(app, name, panel, example)(function)
    plugins.register(app)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed, as by `>&-`
            setattr(sys, stream, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names that a terminal cannot show
    command_line()(None if arguments is None else list(arguments), prog_name="torchldr")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"torchldr {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an error came from.")] = False,
) -> None:
    pass


@command(app, "info", LOOK, "--structure ldr_sd --n 4096 --batch 64")
def info_command(
    structure: Annotated[
        str | None, typer.Option(help="Explain both products of this class, and which is used, instead.")
    ] = None,
    n: Annotated[int, typer.Option(min=1, help="With --structure: features of a square layer.")] = 1024,
    batch: Annotated[int, typer.Option(min=1, help="With --structure: vectors in a call.")] = 1,
    rank: Annotated[int, typer.Option(min=1, help="With --structure: its rank, if it has one.")] = 1,
    frozen: Annotated[bool, typer.Option(help="With --structure: in a frozen layer.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what is installed and on, or the products of one class.

    Versions, devices, classes, and which fast paths are on, or why they are off.
    """
    from ..info import info, products

    if structure is not None:
        with wrong_use("--structure"):
            found = products(structure, n=n, batch=batch, rank=rank, frozen=frozen)
        show(found, as_json)
        return
    facts = info()
    show(facts if as_json else list(_lines(facts)), as_json)


def _lines(facts: dict[str, Any]) -> Iterator[dict[str, str]]:
    """What `info` found, as rows for one screen."""

    def line(what: str, value: str) -> dict[str, str]:
        return {"what": what, "value": value}

    for name, found in facts["versions"].items():
        yield line(name, found or "not installed")
    machine = facts["platform"]
    yield line("system", f"{machine['system']} {machine['machine']}")
    cores = f", {machine['cores']} cores, {machine['threads']} threads in torch"
    for d in facts["devices"]:
        yield line(d["device"], d["description"] + (cores if d["device"] == "cpu" else ""))
    yield line("structures", ", ".join(facts["structures"]))
    yield line("for serving", "torchldr.freeze(model) precomputes what does not depend on the input")
    for path in facts["fast_paths"]:
        yield line(path["name"], f"on: {path['does']}" if path["on"] else f"off: {path['why_not']}")
    for name, extra in facts["extras"].items():
        packages = ", ".join(f"{p} {v}" if v else f"no {p}" for p, v in extra["packages"].items())
        hint = f" ({extra['install']})" if extra["install"] else ""
        yield line(f"extra {name}", packages + hint)


@command(app, "structures", LOOK, "--json")
def structures_command(as_json: AsJson = False) -> None:
    """List the structured classes and what they cost.

    Parameters are counted for a layer from 784 to 784 features, at the rank shown,
    which is a good first one.
    """
    from ..info import describe_structures

    rows = describe_structures()
    columns = ("name", "class", "parameters", "first_rank", "options", "summary")
    if not as_json:
        for row in rows:
            row["options"] = row["options"] or None
    show(rows, as_json, columns=columns, headings={"first_rank": "rank"})
