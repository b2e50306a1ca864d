"""The page on exporting has every class."""

from pathlib import Path

import torchldr

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "export.md"


def test_every_class_is_on_the_page():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    for name in torchldr.structures():
        assert any(f"`{name}`" in row.split("|")[1] for row in rows), name
