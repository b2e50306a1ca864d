"""What is missing in a table, group by group: trained, appended and told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, as_completed
from functools import partial
from typing import Protocol

import torch

from .methods import Method
from .rows import Row, Rows

Say = Callable[[str], None]

LARGEST_ON_A_CPU = 256  # features up to which LDR-TD is trained there unasked


def affords_tridiagonal(shapes: Iterable[tuple[int, int]], device: torch.device, thorough: bool) -> bool:
    """Whether LDR-TD of layers of these shapes is trained: on a CPU small ones only, unless `thorough`."""
    return thorough or device.type == "cuda" or max(max(shape) for shape in shapes) <= LARGEST_ON_A_CPU


class Table(Protocol):
    """A table under way."""

    key: str  # of its settings

    def rows(self, chosen: list[Method]) -> list[Row]:
        """The rows of some methods, trained side by side where that is faster."""


def run_missing(
    name: str,
    table: Table,
    groups: Iterable[Sequence[Method]],
    rows: Rows,
    device: torch.device,
    *,
    deadline: float,
    say: Say,
    executor: Executor | None = None,
) -> bool:
    """Train the methods that have no row with these settings yet.

    Args:
        name, table: whose rows.
        groups: methods that are trained side by side.
        rows: where they are looked up and appended.
        device: where they are trained.
        deadline: begin nothing after this time of `time.monotonic`.
        say: called with a line a group.
        executor: where to train, a class a task; by default here, a group after the other. One with `put`,
            such as `RayExecutor`, takes the table once to each node.

    Returns:
        False where the time did not suffice for all of it, or a group failed.
    """
    lacking = [[m for m in group if rows.find(name, m, table.key) is None] for group in groups]
    todo = [group for group in lacking if group]
    train: Callable[[list[Method]], Future[list[Row]]] = partial(_done, table)
    if executor is not None:
        todo = [[m for m in group if m.name == kind] for group in todo for kind in _names(group)]
        put = getattr(executor, "put", lambda value: value)
        train = partial(_submit, executor, put(table))
    complete, begun = True, time.monotonic()

    def take(future: Future[list[Row]], group: list[Method]) -> bool:
        label = group[0].key if len(group) == 1 else f"{len(group)} methods ({', '.join(_names(group))})"
        try:
            found = future.result()
        except Exception as error:  # out of memory, say: what else there is may still run
            if executor is None and not isinstance(error, RuntimeError):
                raise
            say(f"{name}: {label} failed: {' '.join(str(error).split())}")
            return False
        for row in found:
            rows.append(row, device)
        told = f" {_number(found[0]['before'])} -> {_number(found[0]['after'])}" if len(found) == 1 else ""
        say(f"{name}: {label}{told} after {time.monotonic() - begun:.1f} s")
        return True

    waiting: dict[Future[list[Row]], list[Method]] = {}
    for group in todo:
        if time.monotonic() > deadline:
            say(f"{name}: no time left for {', '.join(_names(group))} and what follows")
            complete = False
            break
        future = train(group)
        if executor is None:
            complete = take(future, group) and complete
        else:
            waiting[future] = group
    for future in as_completed(waiting):
        complete = take(future, waiting[future]) and complete
    return complete


def _names(group: Iterable[Method]) -> list[str]:
    return [*dict.fromkeys(method.name for method in group)]


def _rows(table: Table, group: list[Method]) -> list[Row]:
    return table.rows(group)


def _submit(executor: Executor, table: Table, group: list[Method]) -> Future[list[Row]]:
    return executor.submit(_rows, table, group)


def _done(table: Table, group: list[Method]) -> Future[list[Row]]:
    """The same here and at once."""
    future: Future[list[Row]] = Future()
    try:
        future.set_result(table.rows(group))
    except Exception as error:
        future.set_exception(error)
    return future


def _number(value: float | None) -> str:
    return "inf" if value is None else f"{value:.1f}"
