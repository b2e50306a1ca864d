"""A table of the study under way: what has no row yet is trained group by group, appended and told."""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, as_completed
from dataclasses import asdict
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..ledger.tensors_file import read_tensors, write_tensors
from .methods import Method, methods, parameters, reaches
from .tables import WEIGHTS, Row, Rows, settings_key

_log = logging.getLogger("torchldr_paper")

Say = Callable[[str], None]
Trained = tuple[dict[str, Tensor], dict[str, Any]]
Shape = tuple[int, int]

LARGEST_ON_A_CPU = 256  # features up to which LDR-TD is trained there unasked


class TableRun(ABC):
    """A table under way: its data, its dense model, and the rows of its methods.

    Args:
        table: its settings, a dataclass.
        results: the folder of the rows; the dense model is kept in a file there.
        device: where to train.

    Attributes:
        key: of the settings.
        path: the file of the dense model.
        source: of the data.
        dense: what the dense model comes to in the test.
        weights: the shapes that are compressed, with how many there are of each.
        others: how many parameters the model has besides.
    """

    metric: ClassVar[str]
    source: str
    dense: float
    weights: list[tuple[Shape, int]]
    others: int

    def __init__(self, table: Any, results: Path, device: torch.device) -> None:
        self.table, self.device, self.key = table, device, settings_key(asdict(table))
        self.path = results / WEIGHTS / f"compression-{table.name}-{self.key}.safetensors"

    def load_or_train(self, train: Callable[[], Trained]) -> dict[str, Any]:
        """The "tensors" and facts of the dense model, from its file or, where there is none or it is damaged,
        trained and saved.
        """
        if self.path.is_file():
            try:
                tensors, facts, _ = read_tensors(self.path)
                return {**facts, "tensors": tensors}
            except ValueError as error:
                _log.warning("the dense model is trained anew: %s", error)
        tensors, facts = train()
        write_tensors(self.path, tensors, facts)
        return {**facts, "tensors": {name: tensor.detach().cpu() for name, tensor in tensors.items()}}

    @abstractmethod
    def rows(self, chosen: list[Method]) -> list[Row]:
        """The rows of some methods, trained side by side where that is faster."""

    @abstractmethod
    def groups(self, chosen: list[Method]) -> list[list[Method]]:
        """What is trained side by side, in the order in which it is."""

    def methods(self, thorough: bool) -> list[Method]:
        """Those that reach their factor; LDR-TD of large layers only on a GPU, unless `thorough`."""
        shapes = [shape for shape, _ in self.weights]
        small = max(max(shape) for shape in shapes) <= LARGEST_ON_A_CPU
        every = thorough or small or self.device.type == "cuda"
        found = [method for method in methods(self.table.factors) if reaches(method, shapes)]
        return [method for method in found if every or method.name != "ldr_td"]

    def facts(self, method: Method) -> Row:
        """What a row says of a method whatever becomes of it."""
        own = sum(count * parameters(method, *shape) for shape, count in self.weights)
        return {
            "table": self.table.name,
            "metric": self.metric,
            "source": self.source,
            "quick": self.table.train_limit is not None,
            "settings": self.key,
            "method": method.name,
            "factor": method.factor,
            "parameters": own,
            "model_parameters": own + self.others,
            "weights": sum(count * m * n for (m, n), count in self.weights),
            "dense": finite(self.dense),
        }


def finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def run_table(
    table: Any,
    rows: Rows,
    device: torch.device,
    *,
    data_dir: str | None = None,
    deadline: float = math.inf,
    thorough: bool = False,
    say: Say = print,
    executor: Executor | None = None,
) -> bool:
    """Train the methods of a table that have no row with its settings yet.

    Args:
        table: an `ImageTable` or a `LanguageTable`.
        rows: where rows are looked up and appended.
        device, data_dir: where methods are trained, and a data folder.
        deadline: begin nothing after this time of `time.monotonic`.
        thorough: see `TableRun.methods`.
        say: called with a line a group.
        executor: where to train, a class a task; by default here, a group after the other. One with `put`,
            such as `RayExecutor`, takes the table once to each node.

    Returns:
        False where the time did not suffice for all of it, or a group failed.
    """
    begun = time.monotonic()
    name, run = table.name, table.begin(rows.path.parent, device, data_dir)
    say(f"{name}: dense {_number(run.dense, run.metric)}, ready after {time.monotonic() - begun:.1f} s")
    lacking = [method for method in run.methods(thorough) if rows.find(name, method, run.key) is None]
    todo = [group for group in run.groups(lacking) if group]
    if executor is not None:
        todo = [[m for m in group if m.name == kind] for group in todo for kind in _names(group)]
    shared = getattr(executor, "put", lambda value: value)(run)
    complete, begun = True, time.monotonic()

    def take(result: Callable[[], list[Row]], group: list[Method]) -> bool:
        label = group[0].key if len(group) == 1 else f"{len(group)} methods ({', '.join(_names(group))})"
        try:
            found = result()
        except Exception as error:
            if executor is None and not isinstance(error, RuntimeError):
                raise  # not out of memory, say, where what else there is may still run
            say(f"{name}: {label} failed: {' '.join(str(error).split())}")
            return False
        for row in found:
            rows.append(row, device)
        scores = [_number(found[0][key]) for key in ("before", "after")] if len(found) == 1 else []
        say(f"{name}: {label} {' -> '.join(scores)}".rstrip() + f" after {time.monotonic() - begun:.1f} s")
        return True

    waiting: dict[Future[list[Row]], list[Method]] = {}
    for group in todo:
        if time.monotonic() > deadline:
            say(f"{name}: no time left for {', '.join(_names(group))} and what follows")
            complete = False
            break
        if executor is None:
            complete = take(partial(run.rows, group), group) and complete
        else:
            waiting[executor.submit(methodcaller("rows", group), shared)] = group
    for future in as_completed(waiting):
        complete = take(future.result, waiting[future]) and complete
    return complete


def _names(group: Iterable[Method]) -> list[str]:
    return [*dict.fromkeys(method.name for method in group)]


def _number(value: float | None, metric: str = "") -> str:
    if value is None:
        return "inf"
    return f"{value:.2f} %" if metric == "accuracy" else f"{value:.1f}"
