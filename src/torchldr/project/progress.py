"""Progress of a projection: a bar by rich where it is installed, plain lines elsewhere, or a callback."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from .problem import Report, silent


@contextlib.contextmanager
def reporting(choice: bool | Report | None) -> Iterator[Report]:
    """The callback for a choice: a callable is itself, True a bar on stderr, False or None nothing."""
    if callable(choice):
        yield choice
    elif not choice:
        yield silent
    else:
        try:
            from rich import progress as bars
            from rich.console import Console
        except ImportError:
            yield _lines()
            return
        columns = (
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TimeElapsedColumn(),
        )
        with bars.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
            task = shown.add_task("projection", total=None)
            yield lambda stage, done, total: shown.update(
                task, description=stage, completed=done, total=total
            )


def _lines() -> Report:
    """A line on stderr when a stage begins."""
    last = ""

    def report(stage: str, done: int, total: int) -> None:
        nonlocal last
        if stage != last:
            last = stage
            print(f"{stage}, at most {total} steps", file=sys.stderr, flush=True)

    return report
