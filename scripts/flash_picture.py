"""Write the table and the picture of docs/microcontroller.md from the published ledger.

    python scripts/flash_picture.py [--results FOLDER]

--results takes another ledger, to look at runs before they are published: the picture alone, in FOLDER.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import fill_pages
from page_tables.ledger import render_flash

from torchldr_paper.figures import NothingToDrawError, draw
from torchldr_paper.ledger.ledger import Ledger
from torchldr_paper.tables.flash import flash_rows
from torchldr_paper.tables.paper import get_table

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=None)
    results = parser.parse_args().results
    # An empty folder of one's own: the page shows what is published and nothing else.
    ledger = Ledger(ROOT / "no-results-of-ones-own" if results is None else results)
    try:
        picture = draw("accuracy_flash", ledger)
    except NothingToDrawError as reason:
        raise SystemExit(str(reason)) from reason
    print(render_flash(flash_rows(get_table("flash"), ledger)))
    for path in picture.save(ROOT / "docs" / "microcontroller" if results is None else results, ("png",)):
        print(path)
    if results is None:
        fill_pages.main([])


if __name__ == "__main__":
    main()
