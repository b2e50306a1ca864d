"""What is missing in a table, group by group: trained, appended and told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import torch

from .methods import Method
from .rows import Row, Rows

Say = Callable[[str], None]

LARGEST_ON_A_CPU = 256  # features up to which LDR-TD is trained there unasked


def affords_tridiagonal(shapes: Iterable[tuple[int, int]], device: torch.device, thorough: bool) -> bool:
    """Whether LDR-TD of layers of these shapes is trained: on a CPU small ones only, unless `thorough`."""
    return thorough or device.type == "cuda" or max(max(shape) for shape in shapes) <= LARGEST_ON_A_CPU


def run_missing(
    table: str,
    settings: str,
    groups: Iterable[Sequence[Method]],
    train: Callable[[list[Method]], list[Row]],
    rows: Rows,
    device: torch.device,
    *,
    deadline: float,
    say: Say,
) -> bool:
    """Train the methods that have no row with these settings yet.

    Args:
        table, settings: whose rows.
        groups: methods that are trained side by side.
        train: gives the rows of some methods of a group.
        rows: where they are looked up and appended.
        device: where they are trained.
        deadline: begin nothing after this time of `time.monotonic`.
        say: called with a line a group.

    Returns:
        False where the time did not suffice for all of it, or a group failed.
    """
    complete = True
    for group in groups:
        missing = [method for method in group if rows.find(table, method, settings) is None]
        if not missing:
            continue
        names = ", ".join(dict.fromkeys(method.name for method in missing))
        label = missing[0].key if len(missing) == 1 else f"{len(missing)} methods ({names})"
        begun = time.monotonic()
        if begun > deadline:
            say(f"{table}: no time left for {label} and what follows")
            return False
        try:
            found = train(missing)
        except RuntimeError as error:  # out of memory, say: what else there is may still run
            say(f"{table}: {label} failed: {error}")
            complete = False
            continue
        for row in found:
            rows.append(row, device)
        told = f" {_number(found[0]['before'])} -> {_number(found[0]['after'])}" if len(found) == 1 else ""
        say(f"{table}: {label}{told} in {time.monotonic() - begun:.1f} s")
    return complete


def _number(value: float | None) -> str:
    return "inf" if value is None else f"{value:.1f}"
