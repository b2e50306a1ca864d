"""Progress of downloads: rich's bars on a terminal, plain lines on stderr elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich import progress as bars
from rich.console import Console

Progress = Callable[[str, int, int | None], None]
"""Called with a file's name, the bytes that are here, and the bytes in all (None if unknown)."""

_STEP = 10  # percent between plain lines


def silent(name: str, done: int, total: int | None) -> None:
    """Report nothing."""


@contextlib.contextmanager
def progress_bar(choice: bool | Progress) -> Iterator[Progress]:
    """The callback for a choice: a callable is itself, True a bar on stderr, False nothing."""
    if callable(choice):
        yield choice
        return
    console = Console(stderr=True)
    if not (choice and console.is_terminal):
        yield PlainProgress() if choice else silent
        return
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.DownloadColumn(),
        bars.TransferSpeedColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=console) as shown:
        tasks: dict[str, bars.TaskID] = {}

        def report(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = shown.add_task(name, total=total)
            shown.update(tasks[name], completed=done, total=total)

        yield report


class PlainProgress:
    """A line on stderr at the beginning of a file and at every tenth of it."""

    def __init__(self) -> None:
        self._shown: dict[str, int] = {}

    def __call__(self, name: str, done: int, total: int | None) -> None:
        tenth = 100 * done // total // _STEP if total else 0
        if self._shown.get(name) != tenth:
            self._shown[name] = tenth
            share = f"{100 * done // total:3d} % of {total / 1e6:.1f} MB" if total else "begun"
            print(f"{name}: {share}", file=sys.stderr)
