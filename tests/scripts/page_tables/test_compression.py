"""The page of compression: how a table is told, and what is made of all of them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from torchldr_paper.compression.tables import FILE, Row, Rows, best, render

PAGE = Path(__file__).parents[3] / "docs" / "compress.md"


@pytest.fixture
def pages(fill_pages: ModuleType) -> ModuleType:
    return fill_pages.compression


def row(table: str, method: str, factor: int | None, after: float | None, **more: Any) -> Row:
    accuracy = table != "gpt"
    facts = {"metric": "accuracy" if accuracy else "perplexity", "dense": 50.0 if accuracy else 100.0}
    sizes = {"weights": 1000, "parameters": 100, "model_parameters": 350}
    return {
        "table": table,
        "method": method,
        "factor": factor,
        "before": 1.0,
        "after": after,
        **facts,
        **sizes,
    } | more


IMAGES = [
    row("shl_cifar", "dense", 1, 50.5, start="fresh"),
    row("shl_cifar", "ldr_td", 2, 49.0, start="fresh"),
    row("shl_cifar", "low_rank", 2, 48.0, start="projection"),
    row("shl_cifar", "low_rank", 10, 47.0, start="projection"),
    row("shl_cifar", "pruned", 2, 49.5, start="fresh"),
    row("shl_cifar", "pruned", 10, 46.0, start="projection"),
    row("shl_cifar", "ldr_sd", 2, 48.0, start="projection"),
    row("shl_cifar", "ldr_sd", 10, 47.25, start="fresh"),
    row("shl_cifar", "ldr_sd", 20, 51.5, start="fresh"),  # no low rank to compare with
    row("shl_cifar", "circulant", None, 10.0, start="fresh"),
]
TEXT = [
    row("gpt", "dense", 1, 100.0, start="projection", stopped=0),
    row("gpt", "low_rank", 2, 110.0, start="projection"),
    row("gpt", "low_rank", 5, 120.0, start="projection"),
    row("gpt", "pruned", 2, 104.5, start="projection"),
    row("gpt", "ldr_sd", 2, 112.2, start="projection"),
    row("gpt", "ldr_sd", 5, 126.0, start="projection"),
    row("gpt", "toeplitz_like", 5, None, start="projection"),
]


def test_findings_count_and_compare(pages: ModuleType) -> None:
    text = pages.findings({"shl_cifar": IMAGES, "cnn_mnist": [], "gpt": TEXT})
    lines = text.splitlines()
    image, language = pages.TITLES["shl_cifar"], pages.TITLES["gpt"]
    assert f"| {image} | `ldr_td` -1.00 | - | `ldr_sd` -2.75 | `ldr_sd` +1.50 |" in lines
    assert f"| {language} | `low_rank` +10.0 % | `low_rank` +20.0 % | - | - |" in lines
    assert pages.TITLES["cnn_mnist"] not in text
    assert "| magnitude pruning | 1 of 2 | -1.00 to +1.50 | 1 of 1 | -5.0 % to -5.0 % |" in lines
    assert "| `ldr_sd` | 1 of 2 | +0.00 to +0.25 | 0 of 2 | +2.0 % to +5.0 % |" in lines
    assert "| `ldr_td` | 1 of 1 | +1.00 to +1.00 | - | - |" in lines
    assert "| `toeplitz_like` | - | - | - | - |" in lines  # it diverged
    assert "best in 1 of 3 columns on images and in 1 of 2 columns on text." in text
    assert f"a fresh start to the projection in 6 of 10 rows ({image})." in text
    assert pages.findings({"gpt": []}) == "Not measured yet.\n"


def test_a_table_says_what_is_compressed_what_validation_kept_and_what_was_not_run() -> None:
    image, language = render(IMAGES), render(TEXT)
    assert image.startswith("Dense: 50.00 %; trained anew in the same way 50.50. The weights")
    assert "Dense: 100.0 perplexity; trained further in the same way no better" in language
    assert "have 1,000 of the model's 1,250 parameters." in image
    order = re.findall(r"^\| (?:`(\w+)`|magnitude)", image, re.MULTILINE)
    assert order == ["low_rank", "", "ldr_sd", "ldr_td"]  # whatever was run first
    absent = re.search(r"Not run here: (.*)\.", image)
    assert absent is not None
    assert "`toeplitz_like`" in absent[1]
    assert "`ldr_td`" not in absent[1]
    assert "`circulant`" not in absent[1]


def test_the_page_has_the_findings() -> None:
    assert re.findall(r"<!-- table: compression of=(\w+) -->", PAGE.read_text()) == ["findings"]


def test_a_page_that_differs_is_reported_and_mended(fill_pages: ModuleType, tmp_path: Path) -> None:
    row = {"table": "gpt", "method": "ldr_sd", "factor": 10, "parameters": 5, "weights": 50, "settings": "s"}
    row |= {"quick": False, "metric": "perplexity", "dense": 100.0, "before": None, "after": 110.0}
    (tmp_path / "results").mkdir()
    worse = {**row, "method": "pruned", "after": 120.0, "before": 3e7}
    (tmp_path / "results" / FILE).write_text(f"{json.dumps(worse)}\n{json.dumps(row)}\n")
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "compress.md"
    page.write_text("<!-- table: compression of=gpt -->\nold\n<!-- end -->\n")
    assert fill_pages.main(["--root", str(tmp_path), "--check"]) == 1
    assert fill_pages.main(["--root", str(tmp_path)]) == 0
    text = page.read_text()
    assert "| `ldr_sd` | **110.0** (diverged) |" in text
    assert "| magnitude pruning | 120.0 (3e+07) |" in text
    rows = Rows(tmp_path / "results").of("gpt")
    assert best(rows, 10, structured=True)["method"] == "ldr_sd"
    shutil.rmtree(tmp_path / "results")
    fill_pages.main(["--root", str(tmp_path)])
    assert "Not measured yet." in page.read_text()
