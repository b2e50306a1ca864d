"""The page on exporting: every class, and tables that are those of the results."""

import importlib.util
import json
from pathlib import Path

import torchldr

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "export.md"


def script():
    spec = importlib.util.spec_from_file_location("export_table", ROOT / "benchmarks" / "export_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_class_is_on_the_page():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    for name in torchldr.structures():
        assert any(f"`{name}`" in row.split("|")[1] for row in rows), name


def test_tables_are_those_of_the_results():
    content = json.loads((ROOT / "results" / "bench" / "export.json").read_text())
    assert script().filled(PAGE.read_text(), content) == PAGE.read_text()
    measured = {(row["structure"], row["file"]) for row in content["rows"]}
    for name in torchldr.structures():
        assert name == "dense" or {(name, "fft"), (name, "matmul"), (name, "dense")} <= measured


def test_tables_are_filled():
    rows = []
    for file, size, times in (("fft", 1000, 2.0), ("matmul", 2000, 4.0), ("dense", 4000, 8.0)):
        row = {"structure": "circulant", "n": 8, "rank": None, "file": file, "bytes": size}
        rows.append({**row, "faster_batch_1": 8 / times, "faster_batch_32": 1.0})
    page = "before\n<!-- table: export_8 -->\nold\n<!-- end -->\nafter\n"
    content = {"rows": rows, "machine": {"machine": "m", "onnxruntime": "1"}}
    made = script().filled(page, content)
    assert "| `circulant` | - | 1 | 2 | 4 | 4 | 2 | 1 | 1 |" in made
    assert "old" not in made
    assert script().filled(made, content) == made
