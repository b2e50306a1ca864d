"""How the tables of compression are written."""

from __future__ import annotations

import re
from typing import Any

from torchldr_paper.compression.tables import Row, render


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
