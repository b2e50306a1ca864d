"""Accuracy by flash: what a microcontroller of so many kilobytes can hold, in int8, by every method.

At a budget a method is free to choose its size (rank, hidden units, block, kept weights): of all sizes that
were trained and fit, the one with the highest validation accuracy counts. Three networks of each size start
from weights of their own at every learning rate; the rate with the highest mean validation accuracy counts,
and its mean test accuracy stands in the table, all with rounded weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from ..data.registry import DATASETS
from ..ledger.ledger import Ledger
from ..ledger.records import Record
from ..models.images import hidden_input
from ..protocol import Protocol, Run
from ..trainer.rounding import flash_bytes
from ..trainer.selection import Mean, select_mean
from .cells import LOW_RANK_START, Cell, Table, paper_run

BUDGETS = tuple(kilobytes << 10 for kilobytes in (16, 32, 64, 128, 256))
OUTPUTS = 10
METHODS = ("rhu", "low_rank", "pruning", "block_circulant", "toeplitz_like", "ldr_sd", "ldr_td")
OTHERS = METHODS[:3]  # what structured layers are compared with
RANKED = ("low_rank", "toeplitz_like", "ldr_sd", "ldr_td")
LARGEST_RANK = {"ldr_td": 8}  # its training takes time in proportion to the rank
NARROW = BUDGETS[1]  # up to here half the hidden units are tried too
RATES = (0.0003, 0.001, 0.003)  # for a batch of 50, in proportion for others
_EPOCHS = {  # batch, epochs of the single hidden layer and of the CNN
    "rectangles": (50, 50, 50),
    "mnist": (250, 20, 12),
    "mnist_bg_rot": (100, 40, 25),
    "cifar10_grey": (250, 25, 15),
}
SHAPES = {name: DATASETS[name].image_shape for name in _EPOCHS}


def flash_table() -> Table:
    """All sizes of all methods that some budget asks for."""
    cells = []
    for what in product(SHAPES, ("shl", "cnn"), METHODS):
        runs = {run.hash: run for budget in BUDGETS for run in candidates(*what, budget)}
        cells += [Cell(run, None, "", metric="int8") for run in runs.values()]
    return Table("flash", "Test accuracy by kilobytes of flash, int8", tuple(cells))


def candidates(data: str, model: str, method: str, budget: int) -> Iterator[Run]:
    """The largest networks of a method that fit a budget, besides those of smaller budgets."""
    batch, *epochs = _EPOCHS[data]
    lrs = tuple(rate * batch / 50 for rate in RATES)
    protocol = Protocol(epochs=epochs[model == "cnn"], batch=batch, lrs=lrs, trials=3)
    start: dict[str, Any] = LOW_RANK_START if (method, data) == ("low_rank", "rectangles") else {}
    for fields in _largest_networks(SHAPES[data], model, method, budget):
        yield paper_run(data, model, weights="int8", protocol=protocol, **start, **fields)


@functools.cache
def _largest_networks(
    shape: tuple[int, int, int], model: str, method: str, budget: int
) -> list[dict[str, Any]]:
    """The fields of runs that say how large the networks are; the same for all images of a shape."""
    size = hidden_input(model, shape)
    # Rectangular LDR-TD has no fast training on a GPU, and fewer hidden units are a method of their own.
    wide = budget > NARROW or method in ("rhu", "ldr_td")
    find = _largest_of_equal_steps if method in (*RANKED, "rhu") else _largest
    found = []
    for width in (None,) if wide else (None, size // 2):
        fields, most = _sizes(method, size, width)

        def bytes_of(number: int, fields: Callable[[int], dict[str, Any]] = fields) -> int:
            return flash_bytes(Run("", model, **fields(number)), shape, OUTPUTS)

        largest = find(budget, bytes_of, most)
        found += [fields(largest)] if largest else []
    return found


def _sizes(method: str, size: int, width: int | None) -> tuple[Callable[[int], dict[str, Any]], int]:
    """The fields of networks by a number that their weights grow with, and its largest value."""
    rows = width or size
    if method in RANKED:
        most = min(rows, LARGEST_RANK.get(method, rows))
        return (lambda rank: {"structure": method, "rank": rank, "hidden": width}), most
    if method == "rhu":
        return (lambda units: {"structure": "dense", "hidden": units}), size - 1
    if method == "pruning":
        return (lambda keep: {"structure": "dense", "hidden": width, "keep": keep}), size * rows - 1
    blocks = [b for b in range(size, 1, -1) if 210**20 % b == 0]  # products of 2, 3, 5 and 7

    def of_block(i: int) -> dict[str, Any]:
        return {"structure": method, "hidden": width, "options": {"block_size": blocks[i - 1]}}

    return of_block, len(blocks)


def _largest(budget: int, bytes_of: Callable[[int], int], most: int) -> int:
    """The largest size, from 1 to `most`, whose weights fit; 0 where even 1 does not."""
    # Not the bisection of `bisect`: blocks do not grow quite evenly, and other probes give other runs.
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if bytes_of(middle) <= budget else (low, middle - 1)
    return low


def _largest_of_equal_steps(budget: int, bytes_of: Callable[[int], int], most: int) -> int:
    """The same for sizes that each take as many bytes more as the one before."""
    first = bytes_of(1)
    fitting = 1 + (budget - first) // (bytes_of(2) - first)
    return max(0, min(fitting, most))


def size_of(run: Run) -> int:
    """Bytes of flash for the weights of a network."""
    return flash_bytes(run, SHAPES[run.data], OUTPUTS)


def select_rounded(record: Record) -> Mean | None:
    """The trials of the learning rate with the highest mean validation accuracy, with rounded weights."""
    notes = (record.result.get("notes") or {}).get("int8")
    if notes is None:
        return None
    rounded = {name: [notes[name]] for name in ("validation", "test")}
    return select_mean(rounded, record.run.protocol.replicas)


def flash_rows(table: Table, ledger: Ledger) -> list[dict[str, Any]]:
    """A row for every dataset, network, method and budget: the best size by validation."""
    rows = []
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in table.runs():
        groups.setdefault((run.data, run.model, run.method), []).append(run)
    for (data, model, method), runs in groups.items():
        records = [record for run in runs if (record := ledger.find(run)) is not None]
        done = [(record, select_rounded(record)) for record in records]
        for budget in BUDGETS:
            fitting = [run for run in runs if size_of(run) <= budget]
            known = [(r, m) for r, m in done if m is not None and size_of(r.run) <= budget]
            row = {"dataset": data, "model": model, "structure": method, "kilobytes": budget >> 10}
            rows.append({**row, **_best(known, len(fitting))})
    return rows


def _best(known: list[tuple[Record, Mean]], sizes: int) -> dict[str, Any]:
    """The columns of the best network that fits."""
    blank = dict.fromkeys(
        ("rank", "hidden", "bytes", "validation", "test", "deviation", "float", "trained", "lr", "source")
    )
    state = "too large" if not sizes else "done" if len(known) == sizes else "partial" if known else "missing"
    if not known:
        return {**blank, "state": state}
    record, mean = max(known, key=lambda pair: pair[1].validation)
    run, notes = record.run, record.result["notes"]["int8"]
    size = run.keep or dict(run.options).get("block_size") or run.rank
    return {
        "rank": size,
        "hidden": run.hidden,
        "bytes": notes["flash"],
        "validation": round(mean.validation, 2),
        "test": round(mean.test, 2),
        "deviation": round(mean.deviation, 2),
        "float": None if record.mean is None else round(record.mean.test, 2),
        "trained": notes["trained"],
        "lr": mean.lr,
        "source": record.source,
        "state": state,
    }
