"""The results: a line of JSON for each method, and tables of them, as printed and in the documentation."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..ledger.ledger import append_line
from ..ledger.records import device_name, versions
from ..tables.markdown import markdown
from .methods import FACTORS, FIXED, PRUNED, Method, methods

FILE = "compression.jsonl"
WEIGHTS = "weights"  # the folder of the dense models
_NEEDED = ("table", "method", "factor", "parameters", "dense", "before", "after", "settings", "quick")

Row = dict[str, Any]


def settings_key(settings: Mapping[str, Any]) -> str:
    """A name for settings: rows of others are not counted as done."""
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


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

    def find(self, table: str, method: Method, settings: str) -> Row | None:
        """The row of a method with these settings; the latest where there are several."""
        for row in reversed(self.rows):
            same = row["table"], row["method"], row["factor"], row["settings"]
            if same == (table, method.name, method.factor, settings):
                return row
        return None

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


def better(row: Row, other: Row) -> bool:
    """Whether a row is better than another after fine-tuning: more accurate, or less perplexed."""
    if row["after"] is None or other["after"] is None:
        return row["after"] is not None
    gain = row["after"] - other["after"]
    return bool(gain > 0 if row["metric"] == "accuracy" else gain < 0)


def best(rows: Sequence[Row], factor: int, *, structured: bool = False) -> Row | None:
    """The best row at a factor after fine-tuning, of all or of those that are no baseline."""
    found: Row | None = None
    for row in rows:
        if row["factor"] != factor or (structured and row["method"] in BASELINES):
            continue
        if row["after"] is not None and (found is None or better(row, found)):
            found = row
    return found


def render(rows: Sequence[Row]) -> str:
    """A table in Markdown: a line a class, a column a factor, and the classes of one size behind it."""
    if not rows:
        return "Not measured yet.\n"
    first = rows[0]
    unit = "%" if first["metric"] == "accuracy" else "perplexity"
    known = {(row["method"], row["factor"]): row for row in rows}
    lines = [f"Dense: {_number(first, 'dense')} {unit}"]
    if ("dense", 1) in known:
        further = known["dense", 1]
        kept = further.get("stopped") == 0
        gain = "no better, so validation kept it" if kept else _number(further, "after")
        how = "trained anew" if further.get("start") == "fresh" else "trained further"
        lines[0] += f"; {how} in the same way {gain}"
    lines[0] += f". The weights that are compressed have {first['weights']:,}"
    if "model_parameters" in first:
        lines[0] += f" of the model's {first['model_parameters'] - first['parameters'] + first['weights']:,}"
    lines[0] += " parameters."
    factors = [factor for factor in FACTORS if any(row["factor"] == factor for row in rows)]
    body = []
    ranked = [name for name in dict.fromkeys(m.name for m in methods()) if name not in ("dense", *FIXED)]
    names = [name for name in ranked if any(row["method"] == name for row in rows)]
    tops = {factor: best(rows, factor) for factor in factors}
    for name in names:
        own = {factor: known.get((name, factor)) for factor in factors}
        body.append([title(name), *(_cell(row, top=row is tops[factor]) for factor, row in own.items())])
    lines += ["", markdown(["class", *times(factors)], body).rstrip()]
    fixed = [row for row in rows if row["method"] in FIXED]
    if fixed:
        parts = [
            f"`{row['method']}` at {row['weights'] // row['parameters']} times {_cell(row)}" for row in fixed
        ]
        lines += ["", "Classes of one size: " + ", ".join(parts) + "."]
    absent = [title(name) for name in ranked if name not in names]
    if absent:
        lines += ["", "Not run here: " + ", ".join(absent) + "."]
    return "\n".join(lines) + "\n"


def title(method: str) -> str:
    return _NAMES.get(method, f"`{method}`")


def times(factors: Sequence[int]) -> list[str]:
    return [f"{factor} times" for factor in factors]


def _cell(row: Row | None, *, top: bool = False) -> str:
    if row is None:
        return "-"
    after = _number(row, "after")
    return f"{f'**{after}**' if top else after} ({_number(row, 'before')})"


def _number(row: Row, key: str) -> str:
    value = row[key]
    if value is None:
        return "diverged"
    if row["metric"] == "accuracy":
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 1e4 else f"{value:.0e}"
