"""Rows of results as a table, a line for each class: what the command prints and the documentation shows."""

from __future__ import annotations

from collections.abc import Sequence

from ..tables.markdown import markdown
from .methods import FACTORS, FIXED, PRUNED, methods
from .rows import Row

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
    lines[0] += f". The weights that are compressed have {first['weights']:,}{_share(first)} parameters."
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


def _share(row: Row) -> str:
    """How many parameters the whole dense model has."""
    if "model_parameters" not in row:
        return ""
    return f" of the model's {row['model_parameters'] - row['parameters'] + row['weights']:,}"


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
