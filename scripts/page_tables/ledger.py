"""The paper's tables, from the published ledger."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from torchldr_paper.ledger.ledger import Ledger
from torchldr_paper.tables.check import SEEDS, VERDICTS, check
from torchldr_paper.tables.claims import claims
from torchldr_paper.tables.explained import GAPS
from torchldr_paper.tables.flash import BUDGETS, OTHERS, flash_rows
from torchldr_paper.tables.markdown import markdown
from torchldr_paper.tables.paper import get_table
from torchldr_paper.tables.rows import Row, heading, overview, table_rows, tells

_COLUMNS = (
    "dataset", "model", "structure", "rank", "fraction", "init", "parameters", "test", "deviation", "paper",
)  # fmt: skip
BENCHMARKS = Path(__file__).resolve().parents[2] / "results" / "bench"
_LABELS = ("dataset", "model", "structure")
_ALWAYS = ("structure", "parameters", "test", "paper")


def render(rows: Sequence[Row]) -> str:
    """Rows that have been run, as Markdown; columns that say the same in every row are left out."""
    rows = [row for row in rows if row["state"] in ("done", "partial")]
    shown = [key for key in _COLUMNS if key in _ALWAYS or tells(key, (row[key] for row in rows))]
    head = [heading(rows) if key == "test" else key for key in shown]
    return markdown(head, [[_cell(key, row) for key in shown] for row in rows], len({*shown} & {*_LABELS}))


def render_across(rows: Sequence[Row], key: str) -> str:
    """Rows that have been run, a line for each dataset, model and structure: results by `key`."""
    if key not in ("rank", "fraction"):
        raise ValueError(f"across takes rank or fraction, got {key!r}.")
    rows = [row for row in rows if row["state"] in ("done", "partial")]
    if not rows:
        return "Not run yet.\n"
    labels = [key for key in _LABELS if key == "structure" or len({row[key] for row in rows}) > 1]
    columns = sorted({row[key] for row in rows}, key=lambda value: (value is not None, value))
    lines: dict[tuple[str, ...], dict[Any, str]] = {}
    for row in rows:
        line = lines.setdefault(tuple(_cell(k, row) for k in labels), {})
        if row[key] in line:
            raise ValueError(f"across={key}: two rows of {row['structure']!r} differ in something else.")
        line[row[key]] = _result(row)
    head = [*labels, *(_cell(key, {key: value}) for value in columns)]
    head[len(labels)] = f"{key} {head[len(labels)]}"
    body = ([*label, *(found.get(value, "") for value in columns)] for label, found in lines.items())
    return markdown(head, body, len(labels))


def render_overview(tables: Sequence[Row]) -> str:
    """Every table with how many of its runs are there and what they took."""
    counts = ("runs", "done", "seeds")
    body = [
        [f"`{row['name']}`", row["title"], *(str(row[key]) for key in counts), f"{row['seconds']:,.0f}"]
        for row in tables
    ]
    return markdown(["table", "what", "runs", "there", "seeds", "seconds"], body, left=2)


def render_check(ledger: Ledger) -> str:
    """The verdicts on every table, counted."""
    rows = check(ledger)["rows"]
    columns = ("cells", f"{SEEDS} seeds", *VERDICTS, "largest gap")
    lines = []
    for name in dict.fromkeys(row["table"] for row in rows):
        own = [row for row in rows if row["table"] == name]
        counts = [sum(row["verdict"] == verdict for row in own) for verdict in VERDICTS]
        enough = sum(row["seeds"] >= SEEDS for row in own)
        worse = [abs(row["difference"]) for row in own if row["verdict"] != VERDICTS[0]]
        gap = f"{max(worse):.2f}" if worse else "-"
        lines.append([f"`{name}`", str(len(own)), str(enough), *map(str, counts), gap])
    return markdown(["table", *columns], lines)


def render_claims(ledger: Ledger) -> str:
    """The paper's claims: a line each, with the numbers of those sets of data where our runs say no."""
    found: dict[str, list[Row]] = {}
    for row in claims(ledger, BENCHMARKS):
        found.setdefault(row["claim"], []).append(row)
    body = []
    for claim, rows in found.items():
        true = sum(row["holds"] is True for row in rows)
        told = "true" if true == len(rows) else f"{true} of {len(rows)}" if true else "**false**"
        body.append([claim, told, "; ".join(_claimed(row) for row in rows if not row["holds"])])
    return markdown(["claim", "holds", "where not"], body, left=3)


def _claimed(row: Row) -> str:
    """`MNIST-noise* 85.35 / 79.90 (Hankel-like)`: a star for stand-in data."""
    data = "" if row["data"] == "-" else row["data"] + ("*" if row["source"] == "stand-in" else "")
    numbers = re.sub(r" \(unstructured\)| of rank \d+", "", row["numbers"]).replace(" against ", " / ")
    return f"{data} {numbers}".strip()


def render_explained() -> str:
    """The gaps that are explained."""
    body = [[f"`{gap.table}`", gap.cells.replace("_", "\\_"), f"{gap.tried} {gap.remains}"] for gap in GAPS]
    return markdown(["table", "cells", "what was tried, and what remains"], body, left=3)


def _result(row: Row) -> str:
    spread = "" if row["deviation"] is None else f" ± {row['deviation']:.2f}"
    return _cell("test", row) + spread + ("" if row["paper"] is None else f" ({row['paper']:.2f})")


def _cell(key: str, row: Row) -> str:
    value = row[key]
    if value is None or value == []:
        return "-"
    if key == "structure":
        return f"`{value}`"
    if key == "fraction":
        return f"{value:.0%}"
    if key == "parameters":
        return f"{value:,}"
    if key in ("test", "deviation", "paper"):
        return f"{value:.2f}"
    return str(value)


def render_flash(rows: list[dict[str, Any]]) -> str:
    """What fits into each size of flash: a line for each dataset and network, a column for each budget.

    A cell has the best structured class and, in brackets, the best of the other methods. Bold is ahead; `-`
    does not fit or was not run.
    """
    done = [row for row in rows if row["test"] is not None]
    if not done:
        return "Not run yet.\n"
    columns = [budget >> 10 for budget in BUDGETS]
    body = []
    for data, model in dict.fromkeys((row["dataset"], row["model"]) for row in done):
        own = [row for row in done if (row["dataset"], row["model"]) == (data, model)]
        cells = (_flash_cell([row for row in own if row["kilobytes"] == k]) for k in columns)
        body.append([data, model, *cells])
    head = ["dataset", "network", *(f"{kilobytes} kB" for kilobytes in columns)]
    return markdown(head, body, left=2)


def _flash_cell(rows: Sequence[Row]) -> str:
    """The best structured class, and the best of the others in brackets."""
    ours, others = (
        max(
            (row for row in rows if (row["structure"] in OTHERS) is other),
            key=lambda row: row["test"],
            default=None,
        )
        for other in (False, True)
    )
    tests = [-1.0 if row is None else row["test"] for row in (ours, others)]
    name = "" if ours is None else f"`{ours['structure']}` "
    texts = [_bold(test, max(tests)) for test in tests]
    return f"{name}{texts[0]} ({texts[1]})"


def _bold(test: float, best: float) -> str:
    text = "-" if test < 0 else f"{test:.2f}"
    return f"**{text}**" if test == best else text


@cache
def _published() -> Ledger:
    """An empty folder of one's own: pages show what is published and nothing else."""
    return Ledger("no-results-of-ones-own")


def table(name: str, keys: Mapping[str, str], ledger: Ledger | None = None) -> str:
    """Rows of the paper's table of this name, those for which the keys have these values.

    Args:
        name: of the table; "list" is what every table took, "check", "claims" and "explained" the verdicts.
        keys: values by column, commas between several; `across` is "rank" or "fraction" where these make
            one line of the rows of a dataset, model and structure.
        ledger: the published one by default.
    """
    ledger = ledger or _published()
    if name == "list":
        return render_overview(overview(ledger))
    if name in ("check", "claims"):
        return (render_check if name == "check" else render_claims)(ledger)
    if name == "explained":
        return render_explained()
    wanted = {key: value for key, value in keys.items() if key != "across"}
    find = flash_rows if name == "flash" else table_rows
    rows = [row for row in find(get_table(name), ledger) if _matches(row, wanted)]
    if name == "flash":
        return render_flash(rows)
    return render_across(rows, keys["across"]) if "across" in keys else render(rows)


def _matches(row: Row, wanted: Mapping[str, str]) -> bool:
    return all(str(row[key]) in value.split(",") for key, value in wanted.items())
