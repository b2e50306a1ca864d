"""The tables of docs/compress.md.

    python -m torchldr.experiments.compression.pages [--root FOLDER] [--check]

Everything between `<!-- compression: NAME -->` and `<!-- end -->` is replaced by the rows of that table in
`results/compression.jsonl`. --check changes nothing and exits with 1 where the page differs.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from .methods import FACTORS, FIXED, PRUNED
from .rows import Row, Rows

_MARKED = re.compile(r"(<!-- compression: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
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
        lines[0] += f"; trained further in the same way {_number(known['dense', 1], 'after')}"
    lines[0] += f". The weights that are compressed have {first['weights']:,} parameters."
    factors = [factor for factor in FACTORS if any(row["factor"] == factor for row in rows)]
    lines += ["", "| class | " + " | ".join(f"{factor} times" for factor in factors) + " |"]
    lines.append("|---|" + "---:|" * len(factors))
    names = [name for name in dict.fromkeys(row["method"] for row in rows) if name not in ("dense", *FIXED)]
    tops = {factor: best(rows, factor) for factor in factors}
    for name in names:
        cells = []
        for factor in factors:
            row = known.get((name, factor))
            cells.append("-" if row is None else _cell(row, top=row is tops[factor]))
        lines.append(f"| {_NAMES.get(name, f'`{name}`')} | " + " | ".join(cells) + " |")
    fixed = [row for row in rows if row["method"] in FIXED]
    if fixed:
        parts = []
        for row in fixed:
            times = row["weights"] // row["parameters"]
            parts.append(f"`{row['method']}` at {times} times {_cell(row)}")
        lines += ["", "Classes of one size: " + ", ".join(parts) + "."]
    return "\n".join(lines) + "\n"


def _cell(row: Row, *, top: bool = False) -> str:
    after = _number(row, "after")
    return f"{f'**{after}**' if top else after} ({_number(row, 'before')})"


def _number(row: Row, key: str) -> str:
    value = row[key]
    if value is None:
        return "diverged"
    if row["metric"] == "accuracy":
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 1e4 else f"{value:.0e}"


def fill(text: str, rows: Rows) -> str:
    """A page with its tables as the rows have them."""
    return _MARKED.sub(lambda match: f"{match[1]}{render(rows.of(match[2]))}{match[3]}", text)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path())
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args(arguments)
    page = chosen.root / "docs" / "compress.md"
    text = page.read_text(encoding="utf-8")
    filled = fill(text, Rows(chosen.root / "results"))
    if filled == text:
        return
    if chosen.check:
        sys.exit(f"{page} differs from the results: run python -m torchldr.experiments.compression.pages")
    page.write_text(filled, encoding="utf-8")


if __name__ == "__main__":
    main()
