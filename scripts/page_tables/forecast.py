"""Tables of docs/forecast.md: results/forecast/compare.jsonl, ridge.json and microcontroller.json."""

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
    "seasonal naive",
)  # fmt: skip


def table(name: str, keys: Mapping[str, str], folder: Path) -> str:
    """A table of this module, or what to run for it."""
    file, make = TABLES[name]
    path = folder / file
    if not path.exists():
        return f"\nNot measured yet: `python benchmarks/forecast_{path.stem}.py`.\n"
    return f"\n{make(path.read_text('utf-8'), keys)}"


def _compare(text: str, keys: Mapping[str, str]) -> str:
    """One series and past: methods by horizons, then weights and int8 of the first horizon."""
    rows: Sequence[Row] = [json.loads(line) for line in text.splitlines()]
    rows = [row for row in rows if row["data"] == keys["data"] and str(row["past"]) == keys["past"]]
    horizons = sorted({row["horizon"] for row in rows})
    first = horizons[0] if horizons else 0
    body = []
    for method in METHODS:
        found = {h: [r for r in rows if (r["method"], r["horizon"]) == (method, h)] for h in horizons}
        if not any(found.values()):
            continue
        cells = [_errors([row["error"] for row in found[h]]) for h in horizons]
        ours = found[first]
        small = _errors([row["int8_error"] for row in ours]) if ours and ours[0]["weights"] else "-"
        sizes = [
            f"{ours[0][key]:,}" if ours and ours[0]["weights"] else "-" for key in ("weights", "int8_bytes")
        ]
        seconds = f"{mean(row['fit_seconds'] for row in ours):.2g}" if ours and ours[0]["weights"] else "-"
        body.append([method, *cells, sizes[0], sizes[1], small, seconds])
    ahead = [f"{h} ahead" for h in horizons]
    return markdown(["method", *ahead, f"weights, {first} ahead", "bytes", "error in int8", "fit, s"], body)


def _errors(values: Sequence[float]) -> str:
    if not values:
        return "-"
    spread = f" ± {stdev(values):.4f} ({len(values)} seeds)" if len(values) > 1 else ""
    return (
        f"{mean(values):.4f}{spread}".replace("0.", ".", 1)
        if mean(values) < 1
        else f"{mean(values):.3f}{spread}"
    )


def _ridge(text: str, keys: Mapping[str, str]) -> str:
    rows: Sequence[Row] = json.loads(text)["rows"]
    body = []
    for values, past in dict.fromkeys((row["values"], row["past"]) for row in rows):
        case = {(r["method"], r["rank"]): r for r in rows if (r["values"], r["past"]) == (values, past)}
        ours, low, ridge = (case.get(key) for key in (("torchldr", None), ("torchldr", 4), ("Ridge", None)))
        line = [f"{values:,}", f"{past:,}"]
        line += [f"{r['seconds']:.2g} s, {r['megabytes']:,} MB" if r else "-" for r in (ours, low, ridge)]
        body.append(line)
    return markdown(["values", "past", "exact", "rank 4", "Ridge on windows"], body)


def _microcontroller(text: str, keys: Mapping[str, str]) -> str:
    rows: Sequence[Row] = json.loads(text)["rows"]
    columns = {"weights_bytes": "weights, bytes", "model_bytes": "weights and code", "arena_bytes": "RAM",
               "instructions": "instructions"}  # fmt: skip
    body = [
        [
            r["forecaster"],
            *(f"{r[key]:,}" for key in columns),
            f"{r['error']:.4f}",
            f"{r['float32_error']:.4f}",
        ]
        for r in rows
    ]
    return markdown(["forecaster", *columns.values(), "error", "error in PyTorch"], body)


TABLES: dict[str, tuple[str, Callable[[str, Mapping[str, str]], str]]] = {
    "forecasters": ("compare.jsonl", _compare),
    "forecast_ridge": ("ridge.json", _ridge),
    "forecast_microcontroller": ("microcontroller.json", _microcontroller),
}
