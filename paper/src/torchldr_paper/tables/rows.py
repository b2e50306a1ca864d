"""From the ledger to rows: our numbers beside the paper's. Functions of the ledger alone.

A row is a flat mapping that JSON can hold, the same keys in every row of a table:

    table, dataset, model, structure ("pruning" and "rhu" for those baselines), rank, hidden, fraction, init,
    epochs, parameters, paper_parameters (where the paper may count otherwise),
    validation (of the selected networks, mean over seeds), test (mean over seeds),
    deviation (over seeds; over trials for the metric "mean"), paper, difference, metric,
    source (where in the paper), data ("official", "stand-in", "user"),
    seconds (of all seeds), seeds, lr (chosen, for each seed), diverged (replicas), quick,
    state ("done", "partial", "missing" or "quoted"), hashes (of the runs)
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..ledger.ledger import Ledger
from ..ledger.records import Record
from ..protocol import INITS, Run
from .cells import Cell, Table
from .flash import select_rounded
from .paper import TABLES

Row = dict[str, Any]


def table_rows(table: Table, ledger: Ledger, seeds: int = 1) -> list[Row]:
    """The rows of a table: every cell in order, then what the paper quotes of others.

    A finished cell should have so many seeds; all that are there are shown.
    """
    found = _by_cell(ledger)
    rows = [_cell_row(table.name, cell, found.get(cell.run.seedless, []), seeds) for cell in table.cells]
    return rows + [_quoted_row(table.name, *quoted) for quoted in table.quoted]


def run_rows(runs: Iterable[Run], ledger: Ledger) -> list[Row]:
    """Rows for runs of one's own, one for all seeds of the same run."""
    cells = {run.seedless: Cell(run, None, "") for run in runs}
    found = _by_cell(ledger)
    return [_cell_row("train", cell, found.get(key, []), 1) for key, cell in cells.items()]


def overview(ledger: Ledger, tables: Mapping[str, Table] = TABLES) -> list[Row]:
    """Every table with its state: how many of its runs are there, and what they took."""
    found = _by_cell(ledger)
    rows = []
    for table in tables.values():
        records = [found.get(run.seedless, []) for run in table.runs()]
        done = sum(bool(group) for group in records)
        state = "done" if done == len(records) else "partial" if done else "missing"
        rows.append(
            {
                "name": table.name,
                "title": table.title,
                "runs": len(records),
                "done": done,
                "seeds": max((len(group) for group in records), default=0),
                "data": ", ".join(sorted({record.source for group in records for record in group})) or None,
                "seconds": round(sum(r.result["seconds"] for group in records for r in group), 1),
                "state": state,
            }
        )
    return rows


def metric_of(record: Record, metric: str) -> float | None:
    """The number of a finished run that a table compares; None where every replica diverged."""
    best, mean = record.best, record.mean
    if metric == "int8":
        found = select_rounded(record)
        return None if found is None else found.test
    if metric == "mean":
        return None if mean is None else mean.test
    if best is None:
        return None
    return best.train - best.test if metric == "generalization" else best.test


def heading(rows: Sequence[Row]) -> str:
    """What the column `test` of these rows holds."""
    metrics = {row.get("metric", "test") for row in rows if row.get("state") != "quoted"}
    return _HEADINGS[metrics.pop()] if len(metrics) == 1 else "test"


def tells(key: str, values: Iterable[Any]) -> bool:
    """Whether a column says something: its values differ, or a start is more than one of the usual names."""
    found = set(map(str, values))
    return len(found) > 1 or (key == "init" and not found <= {*INITS, "None"})


_HEADINGS = {
    "test": "test",
    "mean": "mean test",
    "generalization": "training less test",
    "perplexity": "perplexity",
    "int8": "int8 test",
}


def _by_cell(ledger: Ledger) -> dict[str, list[Record]]:
    """Records by run, seeds together: one a seed, of the best data there is."""
    groups: dict[str, dict[str, dict[int, Record]]] = defaultdict(lambda: defaultdict(dict))
    for record in ledger:
        groups[record.run.seedless][record.source][record.run.seed] = record
    chosen = {}
    for key, sources in groups.items():
        source = "official" if "official" in sources else next(reversed(sources))
        chosen[key] = [sources[source][seed] for seed in sorted(sources[source])]
    return chosen


def _cell_row(table: str, cell: Cell, records: Sequence[Record], seeds: int) -> Row:
    run = cell.run
    numbers = [metric_of(record, cell.metric) for record in records]
    kept = [number for number in numbers if number is not None]
    test = _mean(kept)
    selected = [record.mean if cell.metric == "mean" else record.best for record in records]
    sources = {record.source for record in records}
    official = sources == {"official"}
    difference = test - cell.paper if official and test is not None and cell.paper is not None else None
    return {
        "table": table,
        "dataset": run.data,
        "model": run.model,
        "structure": run.method,
        "rank": run.rank if cell.matches is None else cell.matches,
        "hidden": run.hidden,
        "fraction": run.train_fraction,
        "init": _start(run),
        "epochs": run.protocol.epochs,
        "parameters": records[0].result["parameters"] if records else None,
        "paper_parameters": cell.parameters,
        "validation": _rounded(_mean(record.best.validation for record in records if record.best)),
        "test": _rounded(test),
        "deviation": _rounded(_deviation(cell.metric, kept, records)),
        "paper": cell.paper,
        "difference": _rounded(difference),
        "metric": cell.metric,
        "source": cell.source,
        "data": next(iter(sources), None),
        "seconds": round(sum(record.result["seconds"] for record in records), 1) if records else None,
        "seeds": len(records),
        "lr": [None if chosen is None else chosen.lr for chosen in selected],
        "diverged": sum(epoch is not None for record in records for epoch in record.result["diverged"]),
        "quick": run.protocol.is_quick,
        "state": "done" if len(records) >= seeds else "partial" if records else "missing",
        "hashes": [record.hash for record in records],
    }


def _quoted_row(table: str, source: str, method: str, parameters: int, error: float) -> Row:
    cell = Cell(Run("mnist_bg_rot"), round(100 - error, 2), f"{source}, quoted")
    blank = _cell_row(table, cell, [], 1)
    own = {"structure": method, "parameters": parameters, "init": None, "epochs": None}
    return {**blank, **own, "data": "literature", "state": "quoted"}


def _start(run: Run) -> str:
    parts = [] if run.init_std is not None else [run.init]
    return ", ".join([*parts, *(mark.replace("=", " ").replace("_", " ") for mark in run.marks)])


def _mean(numbers: Iterable[float]) -> float | None:
    found = list(numbers)
    return statistics.fmean(found) if found else None


def _deviation(metric: str, numbers: Sequence[float], records: Sequence[Record]) -> float | None:
    if len(numbers) > 1:
        return statistics.stdev(numbers)
    if metric == "mean" and records and records[0].mean is not None:
        return records[0].mean.deviation
    return None


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 2)
