"""Progress of downloads: rich's bars on a terminal, plain lines on stderr elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

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
    elif not choice:
        yield silent
    else:
        try:
            import rich.progress as rich_progress
            from rich.console import Console
        except ImportError:
            yield PlainProgress()
            return
        console = Console(stderr=True)
        if not console.is_terminal:
            yield PlainProgress()
            return
        columns = (
            rich_progress.TextColumn("{task.description}"),
            rich_progress.BarColumn(),
            rich_progress.DownloadColumn(),
            rich_progress.TransferSpeedColumn(),
            rich_progress.TimeRemainingColumn(),
        )
        with rich_progress.Progress(*columns, console=console) as bars:
            tasks: dict[str, rich_progress.TaskID] = {}

            def report(name: str, done: int, total: int | None) -> None:
                if name not in tasks:
                    tasks[name] = bars.add_task(name, total=total)
                bars.update(tasks[name], completed=done, total=total)

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
