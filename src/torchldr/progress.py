"""Progress of long work: functions call their `progress=` with a stage, the steps done, and their number.

    torchldr.compress_(model, 0.5, loader=batches, progress=print)      # projecting 3 40

The command line shows the same calls as a bar.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Report", "silent"]

Report = Callable[[str, int, int | None], object]
"""Called with a stage, how many of its steps are done, and how many there are (None if unknown)."""


def silent(stage: str, done: int, total: int | None) -> None:
    """Report nothing."""
