"""Scores by epoch for TensorBoard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..protocol import Run
from .fleet import Scores

Log = Callable[[Run, int, Scores], None]
"""Called with the run, the epoch from 0 and its scores."""


def no_log(run: Run, epoch: int, scores: Scores) -> None:
    """Log nothing."""


def tensorboard_log(folder: Path) -> Log:
    """A log that writes scalars: a folder a run, a tag for each metric, learning rate and trial.

    Raises:
        ImportError: where tensorboard is not installed, with what to install.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "--logdir needs tensorboard, which is not installed: pip install tensorboard"
        ) from error
    writers: dict[str, SummaryWriter] = {}

    def log(run: Run, epoch: int, scores: Scores) -> None:
        if run.hash not in writers:
            for writer in writers.values():
                writer.close()
            writers.clear()
            name = f"{run.label.replace('/', '_')} {run.hash}".replace(" ", "-")
            writers[run.hash] = SummaryWriter(str(folder / name))
            writers[run.hash].add_text("config", str(run.config()))
        writer = writers[run.hash]
        for metric, row in scores._asdict().items():
            for replica, value in zip(run.protocol.replicas, row, strict=True):
                if value is not None:
                    writer.add_scalar(f"{metric}/lr={replica.lr:g}/trial={replica.trial}", value, epoch)
        writer.flush()

    return log
