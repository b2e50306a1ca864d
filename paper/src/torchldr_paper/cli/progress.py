"""Progress of the laboratory's commands on stderr: a line for each step, and one that is written over."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from torchldr.cli import say


def steps(total: int) -> Callable[[str], None]:
    """A function to call with a line when a step is done: it adds the step's number and the time left."""
    begun, done = time.monotonic(), 0

    def step(text: str) -> None:
        nonlocal done
        done += 1
        left = timedelta(seconds=int((time.monotonic() - begun) * (total - done) / done))
        say(f"[{done}/{total}] {text}" + (f", about {left} left" if done < total else ""))

    return step


class Line:
    """A last line on stderr that is written over, on a terminal; elsewhere it is not shown."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
        self.terminal = self._console.is_terminal
        self._live = Live("", console=self._console, transient=True, refresh_per_second=5)

    def show(self, text: str) -> None:
        """Write a text over the one before."""
        self._live.update(text)

    def say(self, text: str) -> None:
        """Print a text that stays, above the line."""
        self._console.print(text)

    def __enter__(self) -> Line:
        if self.terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
