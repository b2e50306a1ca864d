"""Write the tables of the documentation from the published results.

    python scripts/fill_pages.py [--root FOLDER] [--check]

Everything between `<!-- table: NAME key=value .. -->` and `<!-- end -->` in README.md and docs is replaced by
the table of that name: one of `page_tables.benchmarks` or `page_tables.forecast`, or one of the paper.
--check changes nothing, and exits with 1 if a page differs from its results. --root: another checkout.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from page_tables import benchmarks, forecast, ledger
from page_tables.marked import filled

ROOT = Path(__file__).resolve().parents[1]


def table(name: str, keys: Mapping[str, str], root: Path) -> str:
    """A table from the results of a checkout."""
    if name in benchmarks.TABLES:
        return f"\n{benchmarks.table(name, root / 'results' / 'bench')}\n"
    if name in forecast.TABLES:
        return forecast.table(name, keys, root / "results" / "forecast")
    return ledger.table(name, keys)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    root, stale = options.root, False
    for path in (root / "README.md", *sorted((root / "docs").rglob("*.md"))):
        before = path.read_text("utf-8") if path.exists() else ""
        text = filled(before, lambda name, keys: table(name, keys, root))
        if text == before:
            continue
        stale = True
        if not options.check:
            path.write_text(text, "utf-8")
        said = "differs from its results" if options.check else "filled"
        print(f"{path.relative_to(root)}: {said}", file=sys.stderr)
    return int(options.check and stale)


if __name__ == "__main__":
    sys.exit(main())
