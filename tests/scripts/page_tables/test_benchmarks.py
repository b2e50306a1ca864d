"""The tables of the documentation that come from benchmarks."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import torchldr
from torchldr_paper.bench.paper_values import RANKS, SIZES, acceleration

ROOT = Path(__file__).resolve().parents[3]
MACHINE = {"machine": "arm", "threads": 2, "torch": "2.0", "device": "cpu"}


@pytest.fixture
def tables(fill_pages) -> ModuleType:
    return fill_pages.benchmarks


def cells() -> list[dict[str, object]]:
    return [
        {"structure": "ldr_sd", "n": n, "rank": r, "ratio": 2.0, "paper": acceleration("ldr_sd", n, r)}
        for n in SIZES
        for r in RANKS
    ]


def on_a_cpu() -> Iterator[dict[str, object]]:
    for n, batch, training in itertools.product((1024, 2048, 4096), (1, 64), (False, True)):
        layer = {"structure": "ldr_sd", "rank": 1, "n": n, "batch": batch, "training": training}
        yield {**layer, "ratio": n / 1000 if batch == 64 and training else 9.0}


def on_a_gpu() -> Iterator[dict[str, object]]:
    for n, what in itertools.product((1024, 2048, 4096), ("training", "inference")):
        layer = {"structure": "ldr_sd", "rank": 1, "features": n, "what": what, "mode": "reduce-overhead"}
        yield {**layer, "ratio": n / 10000}


def test_tables_are_filled_in_and_checked(fill_pages, tmp_path):
    bench = tmp_path / "results" / "bench"
    bench.mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    page, readme = tmp_path / "docs" / "performance.md", tmp_path / "README.md"
    page.write_text(
        "a\n\n<!-- table: ldr_sd -->\n<!-- end -->\n\nb\n<!-- table: instructions -->\nold\n<!-- end -->\nc\n"
    )
    readme.write_text("x\n\n<!-- table: speed -->\n<!-- end -->\n\ny\n")
    cpu, gpu = (
        {"machine": MACHINE, "rows": list(on_a_cpu())},
        {"machine": "a GPU", "rows": list(on_a_gpu())},
    )
    (bench / "gain_cpu.json").write_text(json.dumps(cpu))
    (bench / "gpu_compiled.json").write_text(json.dumps(gpu))
    result = {"machine": MACHINE, "sections": {"ldr_sd": cells()}}
    (bench / "ldr_sd_speed.json").write_text(json.dumps(result))
    root = ["--root", str(tmp_path)]
    assert fill_pages.main([*root, "--check"]) == 1
    assert fill_pages.main(root) == 0
    assert "| 4,096 | 2 (3.34) | 2 (2.57) |" in page.read_text()
    assert "Not measured yet: `python benchmarks/microcontroller.py`." in page.read_text()
    assert "old" not in page.read_text()
    assert "| CPU, training, 64 rows | 1.0 | 2.0 | 4.1 |" in readme.read_text()
    assert "| GPU, inference, compiled | 0.1 | 0.2 | 0.41 |" in readme.read_text()
    assert "Measured on arm, 2 threads, torch 2.0; a GPU." in readme.read_text()
    filled = page.read_text(), readme.read_text()
    assert fill_pages.main(root) == 0
    assert (page.read_text(), readme.read_text()) == filled
    assert fill_pages.main([*root, "--check"]) == 0


def test_numbers_have_three_digits_and_no_exponents(tables):
    numbers = [tables.number(x) for x in (0.0256, 46.13, 17900.0, None)]
    assert numbers == ["0.0256", "46.1", "17,900", "-"]


def test_the_pages_ask_for_every_table(tables):
    pages = (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    asked = {name for page in pages for name in re.findall(r"<!-- table: (\w+) -->", page.read_text())}
    assert set(tables.TABLES) <= asked


def test_exported_files_of_every_class_are_measured_and_shown(tables, tmp_path):
    content = json.loads((ROOT / "results" / "bench" / "export.json").read_text())
    measured = {(row["structure"], row["file"]) for row in content["rows"]}
    for name in torchldr.structures():
        assert name == "dense" or {(name, "fft"), (name, "matmul"), (name, "dense")} <= measured
    rows = []
    for file, size, times in (("fft", 1000, 2.0), ("matmul", 2000, 4.0), ("dense", 4000, 8.0)):
        row = {"structure": "circulant", "n": 1024, "rank": None, "file": file, "bytes": size}
        rows.append({**row, "faster_batch_1": 8 / times, "faster_batch_32": 1.0})
    content = {"rows": rows, "machine": {**MACHINE, "onnxruntime": "1"}}
    (tmp_path / "export.json").write_text(json.dumps(content))
    made = tables.table("export_1024", tmp_path)
    assert "| `circulant` | - | 1 | 4 | 1 |" in made
    assert made.endswith("\nMeasured on arm, one thread, onnxruntime 1.\n")


def test_every_class_is_measured_on_a_microcontroller(load_script):
    script = load_script("benchmarks/microcontroller.py")
    rows = json.loads(script.RESULTS.read_text())["rows"]
    assert {row["structure"] for row in rows} == {name for name, *_ in script.cases()}
