"""Every cell of the paper that official data can repeat, ours beside it, with a verdict.

The paper gives one number a cell, from one run of the whole protocol. We assume that it varies as our runs
of that cell do: with a deviation s over n seeds, the difference between our mean and one such number has the
standard error s sqrt(1 + 1 / n). A cell is "at or above" where ours is as good or better, "within noise"
where it is worse by less than two standard errors, else "below". A single seed has no deviation: if worse,
it is "below".

Tables on stand-in data have no cells here, because their numbers can only be compared with each other. For
these the check counts how many pairs of classes come in the paper's order.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from ..ledger.ledger import Ledger
from .explained import explanation
from .paper import get_table
from .rows import Row, table_rows

CHECKED = ("rectangles", "shl", "cnn", "generalization", "rank", "lstm_authors", "conv")
"""The tables with official data, each in one protocol; that of the language models is the authors' start."""

STAND_INS = ("shl", "noise", "cnn", "pruning", "rhu", "samples", "generalization")
VERDICTS = ("at or above", "within noise", "below")
NOISE = 2.0  # standard errors
SEEDS = 3
APART = 1.0  # points: pairs that are closer in the paper have no order there
_LESS_IS_BETTER = ("perplexity", "generalization")
_GROUPED = ("table", "dataset", "model")
_BUDGETS = ("pruning", "rhu")  # tables whose rows have a budget each, called by a rank


def check(ledger: Ledger, names: Sequence[str] = ()) -> dict[str, Any]:
    """`rows` of cells on official data, `counts` of their verdicts, and `stand_ins`.

    Args:
        ledger: what was run.
        names: of tables, any of the paper's; by default those of `CHECKED` and `STAND_INS`.
    """
    official = [row for name in names or CHECKED for row in table_rows(get_table(name), ledger)]
    rows = [_checked(row) for row in official if row["data"] == "official" and _compares(row)]
    others = [row for name in names or STAND_INS for row in table_rows(get_table(name), ledger)]
    verdicts = Counter(row["verdict"] for row in rows)
    counts = {"cells": len(rows), **{verdict: verdicts[verdict] for verdict in VERDICTS}}
    counts["below and not explained"] = len(unexplained(rows))
    counts["three seeds or more"] = sum(row["seeds"] >= SEEDS for row in rows)
    return {"rows": rows, "counts": counts, "stand_ins": [*_orders(others)]}


def unexplained(rows: Iterable[Row]) -> list[Row]:
    """The cells that are below the paper, for no reason that we can give."""
    return [row for row in rows if row["verdict"] == "below" and not row["explained"]]


def verdict_of(worse_by: float, standard_error: float | None) -> str:
    """The verdict on a cell that is worse than the paper's by so much; negative where it is better."""
    if worse_by <= 0:
        return "at or above"
    return "below" if standard_error is None or worse_by >= NOISE * standard_error else "within noise"


def _compares(row: Row) -> bool:
    return row["test"] is not None and row["paper"] is not None and row["state"] != "quoted"


def _checked(row: Row) -> Row:
    """A row of a table as a row of the check."""
    seeds, deviation = row["seeds"], row["deviation"] if row["seeds"] > 1 else None
    difference = row["test"] - row["paper"]
    error = None if deviation is None else deviation * math.sqrt(1 + 1 / seeds)
    worse_by = difference if row["metric"] in _LESS_IS_BETTER else -difference
    return {
        "table": row["table"],
        "cell": cell_name(row),
        "ours": row["test"],
        "deviation": deviation,
        "seeds": seeds,
        "paper": row["paper"],
        "difference": round(difference, 2),
        "standard_errors": round(difference / error, 2) if error else None,
        "verdict": verdict_of(worse_by, error),
        "explained": explanation(row) is not None,
    }


def cell_name(row: Row) -> str:
    """Where a cell stands in its table.

    >>> cell_name({"dataset": "cifar10", "model": "wide", "structure": "ldr_sd", "rank": 16})
    'cifar10 wide ldr_sd r=16'
    """
    rank = "" if row["rank"] is None else f" r={row['rank']}"
    return f"{row['dataset']} {row['model']} {row['structure']}{rank}"


# The order of classes on stand-ins.


def _orders(rows: Iterable[Row]) -> Iterable[Row]:
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row["data"] == "stand-in" and _compares(row):
            groups[tuple(row[key] for key in _GROUPED)].append(row)
    for key, group in groups.items():
        yield {**dict(zip(_GROUPED, key, strict=True)), "data": "stand-in", **_order(group)}


def _order(rows: Sequence[Row]) -> Mapping[str, Any]:
    """How many pairs, a point or more apart in the paper, come in its order; and those that do not."""
    against, pairs = [], 0
    for one, other in combinations(rows, 2):
        alike = ("fraction", "metric", "rank") if one["table"] in _BUDGETS else ("fraction", "metric")
        gap = one["paper"] - other["paper"]
        if abs(gap) < APART or any(one[key] != other[key] for key in alike):
            continue
        pairs += 1
        if gap * (one["test"] - other["test"]) <= 0:
            first, second = (one, other) if gap > 0 else (other, one)
            against.append(f"{_short(first)} over {_short(second)}")
    return {"pairs": pairs, "in_order": pairs - len(against), "against": against}


def _short(row: Row) -> str:
    rank = "" if row["rank"] is None else f" r={row['rank']}"
    share = "" if row["fraction"] == 1 else f" {row['fraction']:.0%}"
    return f"{row['structure']}{rank}{share}"
