"""Tables of docs/forecast.md, from results/forecast."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from torchldr_paper.tables.markdown import markdown

Row = Mapping[str, Any]
METHODS = (
    "ridge", "Toeplitz-like, exact", "Toeplitz-like, r = 8", "Toeplitz-like, r = 4", "Toeplitz-like, r = 3",
    "Toeplitz-like, r = 2", "low rank 16", "low rank 4", "iterated AR", "SparseTSF", "FITS", "DLinear",
    "DLinear, batches", "SparseTSF, batches", "FITS, batches", "seasonal naive",
)  # fmt: skip


def table(name: str, keys: Mapping[str, str], folder: Path) -> str:
    """A table of this module, or what to run for it."""
    file, make = TABLES[name]
    path = folder / file
    if not path.exists():
        return f"\nNot measured yet: `python benchmarks/forecast_{path.stem}.py`.\n"
    return f"\n{make(path.read_text('utf-8'), keys)}"


def _rows(text: str, keys: Mapping[str, str]) -> Sequence[Row]:
    """Of the series, past (and horizon) that the keys name."""
    rows: Sequence[Row] = [json.loads(line) for line in text.splitlines()]
    return [row for row in rows if all(str(row[key]) == value for key, value in keys.items())]


def _one(text: str, keys: Mapping[str, str]) -> str:
    """One series, past and horizon: all that was measured of each method but by batches."""
    body = []
    for method in METHODS:
        found = [row for row in _rows(text, keys) if row["method"] == method]
        if found and not method.endswith("batches"):
            error, int8 = (_errors([row[key] for row in found]) for key in ("error", "int8_error"))
            sizes = [f"{found[0][key]:,}" for key in ("weights", "int8_bytes")]
            seconds = f"{mean(row['fit_seconds'] for row in found):.2g}"
            body.append([method, error, *([*sizes, int8, seconds] if found[0]["weights"] else ["-"] * 4)])
    return markdown(["method", "error", "weights", "bytes in int8", "error in int8", "fit, s"], body)


def _compare(text: str, keys: Mapping[str, str]) -> str:
    """One series and past: errors by horizon, in floats and in int8."""
    rows = _rows(text, keys)
    horizons = sorted({row["horizon"] for row in rows})
    body = []
    for method in METHODS:
        found = [[r for r in rows if (r["method"], r["horizon"]) == (method, h)] for h in horizons]
        if any(found):
            errors = [_errors([r["error"] for r in part]) for part in found]
            int8 = [_errors([r["int8_error"] for r in part if r["weights"]]) for part in found]
            body.append([method, *errors, *int8])
    ahead = [str(h) for h in horizons]
    names = [f"{ahead[0]} ahead", *ahead[1:], f"{ahead[0]}, int8", *ahead[1:]] if ahead else []
    return markdown(["method", *names], body)


def _errors(values: Sequence[float]) -> str:
    """The error, or the mean of several seeds and their deviation."""
    if not values:
        return "-"
    numbers = [mean(values), *([stdev(values)] if len(values) > 1 else [])]
    return " ± ".join(f"{v:.4f}".removeprefix("0") if v < 1 else f"{v:.3f}" for v in numbers)


def _ridge(text: str, keys: Mapping[str, str]) -> str:
    rows: Sequence[Row] = json.loads(text)["rows"]
    body = []
    for values, past in dict.fromkeys((row["values"], row["past"]) for row in rows):
        case = {(r["method"], r["rank"]): r for r in rows if (r["values"], r["past"]) == (values, past)}
        ours, low, ridge = (case.get(key) for key in (("torchldr", None), ("torchldr", 8), ("Ridge", None)))
        line = [f"{values:,}", f"{past:,}"]
        line += [f"{r['seconds']:.2g} s, {r['megabytes']:,} MB" if r else "-" for r in (ours, low, ridge)]
        body.append(line)
    return markdown(["values", "past", "exact", "rank 8", "Ridge on windows"], body)


def _microcontroller(text: str, keys: Mapping[str, str]) -> str:
    rows: Sequence[Row] = json.loads(text)["rows"]
    columns = {"weights_bytes": "weights, bytes", "model_bytes": "with code", "arena_bytes": "RAM",
               "instructions": "instructions"}  # fmt: skip
    body = [
        [
            f"{r['forecaster']}, {r['arithmetic']}s",
            *(f"{r[key]:,}" for key in columns),
            f"{r['error']:.4f}",
            f"{r['float32_error']:.4f}",
        ]
        for r in rows
    ]
    return markdown(["forecaster", *columns.values(), "error", "error in PyTorch"], body)


def _many(text: str, keys: Mapping[str, str]) -> str:
    facts = json.loads(text)
    names = {"series": "series", "values": "values of each", "threads": "threads",
             "cpu_seconds": "seconds of processor time", "megabytes": "MB above the start"}  # fmt: skip
    return markdown([*names.values()], [[f"{facts[key]:,}" for key in names]])


TABLES: dict[str, tuple[str, Callable[[str, Mapping[str, str]], str]]] = {
    "forecasters": ("compare.jsonl", _compare),
    "forecasters_at": ("compare.jsonl", _one),
    "forecast_many": ("many.json", _many),
    "forecast_ridge": ("ridge.json", _ridge),
    "forecast_microcontroller": ("microcontroller.json", _microcontroller),
}
