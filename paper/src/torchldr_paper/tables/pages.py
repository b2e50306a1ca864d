"""The tables of the pages on experiments, from the published ledger: `python -m torchldr_paper.tables.pages`.

    python -m torchldr_paper.tables.pages [--root FOLDER] [--check]

Everything between `<!-- table: NAME key=value .. -->` and `<!-- end -->` is replaced by the rows of the
paper's table NAME for which the keys have these values. `across=rank` (or `fraction`) makes one line of the
rows of a dataset, model and structure, and `<!-- table: list -->` is what every table took. --check changes
nothing and exits with 1 where a page differs from the ledger.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..ledger.ledger import Ledger
from .flash import flash_rows, render_flash
from .paper import get_table
from .rows import Row, heading, overview, table_rows, tells

PAGES = ("experiments.md", "language.md", "microcontroller.md", "scales.md")  # under docs/
_MARKED = re.compile(r"(<!-- table: (\w+)((?: \w+=\S+)*) -->\n).*?(<!-- end -->)", re.DOTALL)
_COLUMNS = (
    "dataset", "model", "structure", "rank", "fraction", "init", "parameters", "test", "deviation", "paper",
    "lr", "seconds",
)  # fmt: skip
_ALWAYS = ("structure", "parameters", "test", "paper")


def render(rows: Sequence[Row]) -> str:
    """Rows that have been run, as Markdown; columns that say the same in every row are left out."""
    rows = [row for row in rows if row["state"] in ("done", "partial")]
    shown = [
        key for key in _COLUMNS if key in _ALWAYS or tells(key, (row[key] for row in rows)) or key == "lr"
    ]
    rule = ["---" if key in ("dataset", "model", "structure") else "---:" for key in shown]
    head = [heading(rows) if key == "test" else key for key in shown]
    lines = [head, rule, *([_cell(key, row) for key in shown] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def render_across(rows: Sequence[Row], key: str) -> str:
    """Rows that have been run, a line for each dataset, model and structure: results by `key`."""
    if key not in ("rank", "fraction"):
        raise ValueError(f"across takes rank or fraction, got {key!r}.")
    rows = [row for row in rows if row["state"] in ("done", "partial")]
    if not rows:
        return "Not run yet.\n"
    labels = [
        k for k in ("dataset", "model", "structure") if k == "structure" or len({r[k] for r in rows}) > 1
    ]
    columns = sorted({row[key] for row in rows}, key=lambda value: (value is not None, value))
    lines: dict[tuple[str, ...], dict[Any, str]] = {}
    for row in rows:
        line = lines.setdefault(tuple(_cell(k, row) for k in labels), {})
        if row[key] in line:
            raise ValueError(f"across={key}: two rows of {row['structure']!r} differ in something else.")
        line[row[key]] = _result(row)
    head = [*labels, *(_cell(key, {key: value}) for value in columns)]
    head[len(labels)] = f"{key} {head[len(labels)]}"
    rule = ["---"] * len(labels) + ["---:"] * len(columns)
    cells = ([*label, *(found.get(value, "") for value in columns)] for label, found in lines.items())
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, rule, *cells))


def render_overview(tables: Sequence[Row]) -> str:
    """Every table with how many of its runs are there and what they took."""
    head = "| table | what | runs | there | seeds | seconds |\n| --- | --- | ---: | ---: | ---: | ---: |\n"
    return head + "".join(
        f"| `{row['name']}` | {row['title']} | {row['runs']} | {row['done']} | {row['seeds']} "
        f"| {row['seconds']:,.0f} |\n"
        for row in tables
    )


def _result(row: Row) -> str:
    spread = "" if row["deviation"] is None else f" ± {row['deviation']:.2f}"
    return _cell("test", row) + spread + ("" if row["paper"] is None else f" ({row['paper']:.2f})")


def _cell(key: str, row: Row) -> str:
    value = row[key]
    if value is None or value == []:
        return "-"
    if key == "structure":
        return f"`{value}`"
    if key == "lr":
        return ", ".join(f"{rate:g}" for rate in value)
    if key == "fraction":
        return f"{value:.0%}"
    if key == "parameters":
        return f"{value:,}"
    if key in ("test", "deviation", "paper"):
        return f"{value:.2f}"
    return f"{value:.0f}" if key == "seconds" else str(value)


def fill(text: str, ledger: Ledger) -> str:
    """A page with its tables as the ledger has them."""

    def table(match: re.Match[str]) -> str:
        name, wanted = match[2], dict(pair.split("=", 1) for pair in match[3].split())
        if name == "list":
            return f"{match[1]}{render_overview(overview(ledger))}{match[4]}"
        if name == "flash":
            rows = [row for row in flash_rows(get_table(name), ledger) if _matches(row, wanted)]
            return f"{match[1]}{render_flash(rows)}{match[4]}"
        across = wanted.pop("across", None)
        rows = [row for row in table_rows(get_table(name), ledger) if _matches(row, wanted)]
        text = render(rows) if across is None else render_across(rows, across)
        return f"{match[1]}{text}{match[4]}"

    return _MARKED.sub(table, text)


def _matches(row: Row, wanted: Mapping[str, str]) -> bool:
    return all(str(row[key]) in value.split(",") for key, value in wanted.items())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path())
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args(arguments)
    # An empty folder of one's own: pages show what is published and nothing else.
    ledger = Ledger(chosen.root / "no-results-of-ones-own")
    for page in (chosen.root / "docs" / name for name in PAGES):
        text = page.read_text(encoding="utf-8")
        filled = fill(text, ledger)
        if filled == text:
            continue
        if chosen.check:
            sys.exit(f"{page} differs from the published ledger: run python -m torchldr_paper.tables.pages")
        page.write_text(filled, encoding="utf-8")


if __name__ == "__main__":
    main()
