"""Progress of many runs on stderr: what is done, what is at work, the time left; scores for TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..protocol import Run
from .fleet import Scores

Say = Callable[[str], None]
Tell = Callable[[int, int, str], None]
"""Called with the epochs that a run has done, of how many, and a note: first where it begins."""


class Event(NamedTuple):
    """How far a run is."""

    label: str
    node: str
    epoch: int
    total: int


class Progress:
    """What a sweep reports to: a line for each run that is done, and one about those at work.

    Args:
        runs: how many there are.
        say: takes a line that stays; without it nothing is shown.
        show: takes a status line that is overwritten; without it, `say` gets one now and then.
        pause: seconds between two of those.
    """

    def __init__(
        self, runs: int, say: Say = lambda line: None, show: Say | None = None, pause: float = 30.0
    ) -> None:
        self.runs, self.done = runs, 0
        self.at_work: dict[str, Event] = {}
        self._say, self._show, self._pause = say, show, pause
        self._begun = self._said = time.monotonic()
        self._resumed = 0.0

    def update(self, key: str, event: Event) -> None:
        """A run has begun, perhaps after some epochs, or is an epoch further."""
        if key not in self.at_work:
            self._resumed += event.epoch / event.total
        self.at_work[key] = event
        now = time.monotonic()
        if self._show is not None:
            self._show(f"[{self.shares:.2f}/{self.runs}] {self._at_work()}")
        elif now - self._said >= self._pause:
            self._said = now
            self._say(f"    {self._at_work()}")

    def finish(self, key: str, message: str) -> None:
        """A run is done."""
        event = self.at_work.pop(key, None)
        self.done += 1
        self._say(f"[{self.done}/{self.runs}] {message}{'' if event is None else f', {event.node}'}")

    @property
    def shares(self) -> float:
        """How many runs are done, with what is done of those at work."""
        return self.done + sum(event.epoch / event.total for event in self.at_work.values())

    @property
    def seconds_left(self) -> float | None:
        """Until all runs are done, as fast as it went so far."""
        made = self.shares - self._resumed
        return (time.monotonic() - self._begun) / made * (self.runs - self.shares) if made > 0 else None

    def _at_work(self) -> str:
        nodes = {event.node for event in self.at_work.values()}
        least = min(self.at_work.values(), key=lambda event: event.epoch / event.total)
        left = self.seconds_left
        return (
            f"{len(self.at_work)} at work on {', '.join(sorted(nodes)[:4])}"
            f"{' ..' if len(nodes) > 4 else ''}; {least.label} at epoch {least.epoch} of {least.total}"
            + ("" if left is None else f"; about {left:.0f} s left")
        )


Log = Callable[[Run, int, Scores], None]
"""Called with the run, the epoch from 0 and its scores."""


def no_log(run: Run, epoch: int, scores: Scores) -> None:
    """Log nothing."""


def tensorboard_log(folder: Path) -> Log:
    """A log that writes scalars: a folder a run, a tag for each metric, learning rate and trial.

    Raises:
        ImportError: if tensorboard is not installed, with what to install.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "--logdir needs tensorboard, which is not installed: pip install tensorboard"
        ) from error
    writer: SummaryWriter | None = None
    of: Run | None = None

    def log(run: Run, epoch: int, scores: Scores) -> None:
        nonlocal writer, of
        if writer is None or run != of:
            if writer is not None:
                writer.close()
            name = f"{run.label.replace('/', '_')} {run.hash}".replace(" ", "-")
            writer, of = SummaryWriter(str(folder / name)), run
            writer.add_text("config", str(run.config()))
        for metric, row in scores._asdict().items():
            for replica, value in zip(run.protocol.replicas, row, strict=True):
                if value is not None:
                    writer.add_scalar(f"{metric}/lr={replica.lr:g}/trial={replica.trial}", value, epoch)
        writer.flush()

    return log
