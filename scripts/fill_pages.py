"""Write the tables of the documentation from the published results.

    python scripts/fill_pages.py [--root FOLDER] [--check]

Everything between `<!-- table: NAME key=value .. -->` or `<!-- compression: NAME -->` and `<!-- end -->` on
the pages below is replaced by the table of that name. --check changes nothing, and exits with 1 where a page
differs from its results. --root names another checkout.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from page_tables import benchmarks, compression, ledger

ROOT = Path(__file__).resolve().parents[1]
FILL: dict[str, Sequence[Callable[[str, Path], str]]] = {
    "README.md": [benchmarks.fill],
    "docs/compress.md": [benchmarks.fill, compression.fill],
    "docs/experiments.md": [ledger.fill],
    "docs/export.md": [benchmarks.fill],
    "docs/language.md": [ledger.fill],
    "docs/microcontroller.md": [ledger.fill],
    "docs/performance.md": [benchmarks.fill],
    "docs/scales.md": [ledger.fill],
    "docs/tridiagonal.md": [benchmarks.fill],
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    stale = False
    for page, fillers in FILL.items():
        path = options.root / page
        if not path.exists():
            continue
        text = before = path.read_text("utf-8")
        for fill in fillers:
            text = fill(text, options.root)
        if text == before:
            continue
        stale = True
        if not options.check:
            path.write_text(text, "utf-8")
        print(f"{page}: {'differs from its results' if options.check else 'filled'}", file=sys.stderr)
    return int(options.check and stale)


if __name__ == "__main__":
    sys.exit(main())
