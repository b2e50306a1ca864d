"""`torchldr ...`: thin calls into the library.

A command reads its arguments, calls one function and shows what it returns with `show` (a table, or
JSON with --json). Results go to stdout, messages to stderr with `say`. Exit codes: 0 done, 1 failed,
2 wrong use. A command imports what it needs when it runs, so that --help stays quick and optional
packages are asked for only by the command that uses them.

To add a command, write a function with `@app.command()`, or a module with a function `register(app)` as
`bench` beside this file; another package does so by an entry point, see `plugins`. An error that a user can
mend is a ValueError, TypeError, OSError or ImportError with a sentence: it becomes one line and exit code 1.
For a wrong argument raise `typer.BadParameter`, which is exit code 2.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import torchldr

from . import bench, compress, export, plugins
from .options import AsJson
from .printing import say, show


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


@functools.cache
def command_line() -> typer.Typer:
    """All commands, those of other packages too, which are looked for when first asked for."""
    for part in (bench, compress, export, plugins):
        part.register(app)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    command_line()(None if arguments is None else list(arguments), prog_name="torchldr")


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
def info_command(
    structure: Annotated[
        str | None, typer.Option(help="List the routes of this class instead, with costs and reasons.")
    ] = None,
    n: Annotated[int, typer.Option(min=1, help="With --structure: features of a square layer.")] = 1024,
    batch: Annotated[int, typer.Option(min=1, help="With --structure: vectors in a call.")] = 1,
    rank: Annotated[int, typer.Option(min=1, help="With --structure: its rank, if it has one.")] = 1,
    training: Annotated[bool, typer.Option(help="With --structure: with gradients.")] = False,
    as_json: AsJson = False,
) -> None:
    """Versions, devices, structures, and which fast paths are on and why not; or the routes of one class."""
    from torchldr.info import info, routes

    if structure is not None:
        rows = routes(structure, n=n, batch=batch, rank=rank, training=training)
        show(rows, as_json)
        return
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
    say(f"picture: {out}" if saved else "no picture: pip install matplotlib")
