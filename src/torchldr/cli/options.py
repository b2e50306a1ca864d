"""Options that several commands have, and options with several values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

# Where `torchldr --help` lists a command.
LOOK, MODELS, PAPER = "Look around", "Your model", "The paper (torchldr-paper)"

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


class Many(TyperCommand):
    """A command whose options take several values in a row: `--rank 1 16` is `--rank 1 --rank 16`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        several = {
            name
            for parameter in self.params
            if getattr(parameter, "multiple", False)
            for name in parameter.opts
        }
        return super().parse_args(ctx, spread(args, several))


@contextmanager
def wrong_use(option: str) -> Iterator[None]:
    """A ValueError is wrong use of this option, exit code 2."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def command(app: typer.Typer, name: str, panel: str, example: str) -> Callable[[Any], Any]:
    """Decorates the function of a command: where `--help` lists it, and an example of its use."""
    return app.command(name, cls=Many, rich_help_panel=panel, epilog=f"Example: torchldr {name} {example}")


def spread(arguments: Sequence[str], several: set[str]) -> list[str]:
    """Repeat the name of an option before each further value.

    >>> spread(["x", "--rank", "1", "16", "--quick"], {"--rank"})
    ['x', '--rank', '1', '--rank', '16', '--quick']
    """
    result: list[str] = []
    current, values = "", 0
    for argument in arguments:
        if argument[:1] == "-" and argument[1:2].strip(".0123456789"):  # -o, --out; neither -1 nor -
            name = argument.split("=", 1)[0]
            current = name if name in several else ""
            values = 1 if "=" in argument and current else 0
        elif current:
            if values:
                result.append(current)
            values += 1
        result.append(argument)
    return result
