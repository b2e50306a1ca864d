"""The results of the study of compression: a line of JSON for each method, and tables of them."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torchldr.matrices import structures

from ..ledger.ledger import append_line
from ..ledger.records import device_name, versions
from .markdown import markdown

FILE = "compression.jsonl"
FACTORS = (2, 5, 10, 20)
PRUNED = "pruned"
# Their size is given by that of the matrix: one row each, at the factor that it comes to.
FIXED = ("circulant", "fastfood", "acdc")
LATER = ("monarch", "kronecker", "blast")  # classes that came after these tables were run
_NEEDED = ("table", "method", "factor", "parameters", "dense", "before", "after", "settings", "quick")

Row = dict[str, Any]


class Method(NamedTuple):
    """A class, or pruning, at a factor; None is the size that a class without a choice has."""

    name: str
    factor: int | None

    @property
    def key(self) -> str:
        return f"{self.name}/{'fixed' if self.factor is None else self.factor}"


def methods() -> list[Method]:
    """All methods of the tables, by class; the dense model itself, trained further, is the first.

    >>> [method.key for method in methods()][:3]
    ['dense/1', 'low_rank/2', 'low_rank/5']
    """
    found = [Method("dense", 1)]
    found += [Method(name, factor) for name in ("low_rank", PRUNED) for factor in FACTORS]
    for name in structures():
        if name in FIXED:
            found.append(Method(name, None))
        elif name not in ("dense", "low_rank", *LATER):
            found += [Method(name, factor) for factor in FACTORS]
    return found


class Rows:
    """The rows in a folder; its file is made when something is written."""

    def __init__(self, results: str | os.PathLike[str]) -> None:
        self.path = Path(results) / FILE
        self.rows: list[Row] = []
        self.problems: list[str] = []
        if self.path.is_file():
            for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), 1):
                try:
                    row = json.loads(line)
                    _ = [row[name] for name in _NEEDED]
                    self.rows.append(row)
                except (ValueError, KeyError, TypeError, RecursionError) as error:
                    self.problems.append(f"{self.path}, line {number}: {error!r}")

    def has(self, table: str, method: Method, settings: str) -> bool:
        """Whether there is a row of a method with these settings."""
        wanted = table, *method, settings
        return any(
            wanted == (row["table"], row["method"], row["factor"], row["settings"]) for row in self.rows
        )

    def of(self, table: str, *, quick: bool = False) -> list[Row]:
        """The rows of a table with the settings of its latest row, later ones for earlier ones."""
        own = [row for row in self.rows if row["table"] == table and row["quick"] == quick]
        if not own:
            return []
        latest = own[-1]["settings"]
        found = {(row["method"], row["factor"]): row for row in own if row["settings"] == latest}
        return list(found.values())

    def append(self, row: Mapping[str, Any], device: torch.device) -> None:
        """Write a row, with the machine and the time."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        whole = {**row, "device": device_name(device), "versions": versions(), "time": now}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+", buffering=0) as stream:
            append_line(stream, f"{json.dumps(whole)}\n".encode())
        self.rows.append(json.loads(json.dumps(whole)))


_NAMES = {"low_rank": "`low_rank` (truncated SVD)", PRUNED: "magnitude pruning"}
BASELINES = ("dense", "low_rank", PRUNED)


def best(rows: Sequence[Row], factor: int, *, structured: bool = False) -> Row | None:
    """The best row at a factor after fine-tuning, of all or of those that are no baseline."""
    own = [row for row in rows if row["factor"] == factor and row["after"] is not None]
    own = [row for row in own if not (structured and row["method"] in BASELINES)]
    return max(own, key=lambda r: r["after"] if r["metric"] == "accuracy" else -r["after"], default=None)


def render(rows: Sequence[Row]) -> str:
    """A table in Markdown: a line a class, a column a factor, and the classes of one size behind it."""
    if not rows:
        return "Not measured yet.\n"
    first = rows[0]
    unit = "%" if first["metric"] == "accuracy" else "perplexity"
    known = {(row["method"], row["factor"]): row for row in rows}
    lines = [f"Dense: {number(first, 'dense')} {unit}"]
    if ("dense", 1) in known:
        further = known["dense", 1]
        kept = further.get("stopped") == 0
        gain = "no better, so validation kept it" if kept else number(further, "after")
        how = "trained anew" if further.get("start") == "fresh" else "trained further"
        lines[0] += f"; {how} in the same way {gain}"
    whole = first["model_parameters"] - first["parameters"] + first["weights"]
    lines[0] += (
        f". The weights that are compressed have {first['weights']:,} of the model's {whole:,} parameters."
    )
    factors = [factor for factor in FACTORS if any(row["factor"] == factor for row in rows)]
    body = []
    ranked = [name for name in dict.fromkeys(m.name for m in methods()) if name not in ("dense", *FIXED)]
    names = [name for name in ranked if any(row["method"] == name for row in rows)]
    tops = {factor: best(rows, factor) for factor in factors}
    for name in names:
        own = [known.get((name, factor)) for factor in factors]
        cells = [_cell(row, top=row is tops[factor]) for factor, row in zip(factors, own, strict=True)]
        body.append([_title(name), *cells])
    lines += ["", markdown(["class", *(f"{factor} times" for factor in factors)], body).rstrip()]
    fixed = [row for row in rows if row["method"] in FIXED]
    if fixed:
        parts = [
            f"`{row['method']}` at {row['weights'] // row['parameters']} times {_cell(row)}" for row in fixed
        ]
        lines += ["", "Classes of one size: " + ", ".join(parts) + "."]
    if absent := [_title(name) for name in ranked if name not in names]:
        lines += ["", "Not run here: " + ", ".join(absent) + "."]
    return "\n".join(lines) + "\n"


def _title(method: str) -> str:
    return _NAMES.get(method, f"`{method}`")


def _cell(row: Row | None, *, top: bool = False) -> str:
    if row is None:
        return "-"
    after = number(row, "after")
    return f"{f'**{after}**' if top else after} ({number(row, 'before')})"


def number(row: Row, key: str) -> str:
    """A score of a row as it is shown."""
    value = row[key]
    if value is None:
        return "diverged"
    if row["metric"] == "accuracy":
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 1e4 else f"{value:.0e}"
