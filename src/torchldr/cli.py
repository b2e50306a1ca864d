"""`torchldr ...`: thin calls into the library.

A command reads its arguments, calls one function and shows what it returns with `show` (a table, or
JSON with --json). Results go to stdout, messages to stderr with `say`. Exit codes: 0 done, 1 failed,
2 wrong use. A command imports what it needs when it runs, so that --help stays quick and optional
packages are asked for only by the command that uses them.

To add a command, write a function with `@app.command()`; to add a group of them, a `typer.Typer`
and `app.add_typer(it, name=...)`, as `data` below. An error that a user can mend is a ValueError,
TypeError, OSError or ImportError with a sentence: it becomes one line and exit code 1. For a wrong
argument raise `typer.BadParameter`, which is exit code 2.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

import torchldr

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="A data folder; else $TORCHLDR_DATA, else the user's cache.")
]


class _Commands(TyperGroup):
    """Turns an error that a user can mend into one line on stderr and exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (ValueError, TypeError, OSError, ImportError) as error:
            if ctx.params.get("traceback"):
                raise
            say(f"torchldr: {error}")
            raise typer.Exit(1) from error


app = typer.Typer(
    name="torchldr",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Weight matrices with low displacement rank for PyTorch.",
)
data = typer.Typer(no_args_is_help=True, help="The datasets of the paper's experiments.")
app.add_typer(data, name="data")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    app(None if arguments is None else list(arguments), prog_name="torchldr")


def say(message: str) -> None:
    """A message to the user: stderr, so that stdout holds results alone."""
    print(message, file=sys.stderr)


def show(
    result: Any, as_json: bool, *, title: str | None = None, columns: Sequence[str] | None = None
) -> None:
    """Print a result to stdout: as JSON, or rows (a list of mappings) as a table.

    Args:
        result: what JSON can hold; without `as_json` a list of mappings with the same keys.
        as_json: whether to print JSON.
        title: of the table.
        columns: the keys to show and their order; all by default.
    """
    if as_json:
        print(json.dumps(result, indent=2, default=str))
        return
    rows: Sequence[Mapping[str, Any]] = result
    names = list(columns or (rows[0] if rows else ()))
    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    for name in names:
        numbers = all(isinstance(row[name], int | float) and not isinstance(row[name], bool) for row in rows)
        table.add_column(name.replace("_", " "), justify="right" if numbers else "left", no_wrap=numbers)
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in names))
    # A pipe has no width of its own: leave the cutting to what reads it.
    Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False).print(table)


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.3g}"
        case Mapping():
            return ", ".join(f"{key}={item}" for key, item in value.items())
        case list() | tuple():
            return " x ".join(str(item) for item in value)
    return str(value)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"torchldr {torchldr.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an error came from.")] = False,
) -> None:
    pass


@app.command("info")
def info_command(as_json: AsJson = False) -> None:
    """Versions, devices, structures, and which fast paths are on and why not."""
    from torchldr.info import info

    facts = info()
    if as_json:
        show(facts, True)
        return
    machine = facts["platform"]
    rows = [{"what": name, "value": found or "not installed"} for name, found in facts["versions"].items()]
    rows.append({"what": "system", "value": f"{machine['system']} {machine['machine']}"})
    cores = f", {machine['cores']} cores, {machine['threads']} threads in torch"
    for d in facts["devices"]:
        rows.append(
            {"what": d["device"], "value": d["description"] + (cores if d["device"] == "cpu" else "")}
        )
    rows.append({"what": "structures", "value": ", ".join(facts["structures"])})
    for path in facts["fast_paths"]:
        state = f"on: {path['does']}" if path["on"] else f"off: {path['why_not']}"
        rows.append({"what": path["name"], "value": state})
    for name, extra in facts["extras"].items():
        packages = ", ".join(f"{p} {v}" if v else f"no {p}" for p, v in extra["packages"].items())
        hint = f" ({extra['install']})" if extra["install"] else ""
        rows.append({"what": f"extra {name}", "value": packages + hint})
    show(rows, False)


@app.command("structures")
def structures_command(as_json: AsJson = False) -> None:
    """The structured classes, with their parameters for 784 -> 784 at rank 1."""
    from torchldr.info import describe_structures

    rows = describe_structures()
    if not as_json:
        for row in rows:
            row["rank"] = row["ranked"]
            row["options"] = row["options"] or None
    show(rows, as_json, columns=("name", "class", "parameters", "rank", "options", "summary"))


@app.command("demo")
def demo_command(
    out: Annotated[Path, typer.Option(help="Where to save the picture.")] = Path("out/demo.png"),
    steps: Annotated[int, typer.Option(min=1, help="Steps of Adam for each class.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="What the target and the starts are drawn from.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Fit shifts with varying gains with every class: parameters, error, speed, and a picture."""
    from torchldr import demo

    result = demo.run(steps=steps, seed=seed, progress=say)
    show(result.rows, as_json, title=None if as_json else demo.TITLE)
    say(demo.NOTE)
    saved = demo.save_picture(result, out)
    say(f"picture: {out}" if saved else "no picture: pip install torchldr[experiments]")


@data.command("list")
def data_list(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """The datasets, and what is present here."""
    from torchldr.data import status

    rows = [asdict(row) for row in status(data_dir)]
    show(rows, as_json, columns=("name", "train", "test", "classes", "image_shape", "state", "where"))


@data.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help="A name of `torchldr data list`.")],
    data_dir: DataDir = None,
    url: Annotated[str | None, typer.Option(help="Another address than the owner's.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Download again what is here.")] = False,
) -> None:
    """Download a dataset from its owner: with a progress bar, a checksum, and resuming."""
    from torchldr.data import DataFileError, fetch

    try:
        paths = fetch(name, data_dir, url, force=force)
    except DataFileError:  # what came is damaged: not the user's arguments
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    for path in paths:
        print(path)


def _mount() -> None:
    """Add the commands that live beside what they run."""
    from torchldr.bench import command as bench
    from torchldr.compress import command as compress
    from torchldr.experiments import commands as experiments
    from torchldr.experiments.report import commands as report
    from torchldr.theory import command as theory

    for part in (experiments, report, bench, compress, theory):
        part.register(app)


_mount()
