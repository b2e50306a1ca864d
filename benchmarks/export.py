"""ONNX files of every class in every mode: size, and latency in onnxruntime against the dense model's file.

    python benchmarks/export.py [--sizes 1024 4096] [--structures NAME ..] [--out FILE]

Square layers with a bias, operators drawn away from where training starts, float32, one thread, CPU.
"load" is mode "fft" with plan="load". Times are the least over the repeats, all files in turn; ratios are to
the mode "dense" in the same run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import torchldr
from torchldr.export import to_onnx
from torchldr.export.check import session
from torchldr.timing import machine, minimum_seconds

RESULTS = Path(__file__).parents[1] / "results" / "bench" / "export.json"
BATCHES = (1, 32)
FILES = ("fft", "matmul", "load", "dense")
LOAD_SIZE = 1024  # above, the fast products win, and the matrix takes seconds to make


def cases(sizes: Sequence[int], names: Sequence[str]) -> Iterator[tuple[str, int, int | None]]:
    """(structure, n, rank)."""
    for n in sizes:
        for name in names:
            yield name, n, 1 if torchldr.get_structure(name).ranked else None
        for name in ("ldr_sd", "toeplitz_like", "low_rank"):
            if name in names:
                yield name, n, 4


def measure(name: str, n: int, rank: int | None, folder: Path, seconds: float) -> list[dict[str, Any]]:
    """A row for each mode."""
    cls = torchldr.get_structure(name)
    layer = torchldr.StructuredLinear(n, n, structure=cls, rank=rank)
    with torch.no_grad():
        cls.draw_operators_(layer._tensors())
    if cls.name == "ldr_td":  # powers of an operator of norm above 1 leave float32 at these sizes
        layer = torchldr.StructuredLinear(n, n, structure=cls, rank=rank, normalize=True)
    reports, sessions, loads = {}, {}, {}
    for mode in FILES:
        if mode == "load" and n > LOAD_SIZE:
            continue
        path = folder / f"{mode}.onnx"
        how = {"mode": "fft", "plan": "load"} if mode == "load" else {"mode": mode}
        reports[mode] = to_onnx(layer, torch.randn(1, n), path, **how)
        session(path, 1)
        start = time.perf_counter()
        sessions[mode] = session(path, 1)
        loads[mode] = time.perf_counter() - start
    times = {}
    for batch in BATCHES:
        x = torch.randn(batch, n).numpy()
        calls = {
            mode: partial(running.run, None, {running.get_inputs()[0].name: x})
            for mode, running in sessions.items()
        }
        times[batch] = minimum_seconds(calls, 10, seconds)
    rows = []
    for mode, report in reports.items():
        row: dict[str, Any] = {"structure": name, "n": n, "rank": rank, "file": mode}
        row |= {"form": report.layers[0].form, "bytes": report.bytes, "deviation": report.deviation}
        row |= {"smaller": reports["dense"].bytes / report.bytes, "load_ms": loads[mode] * 1e3}
        for batch in BATCHES:
            row[f"us_batch_{batch}"] = times[batch][mode] * 1e6
            row[f"faster_batch_{batch}"] = times[batch]["dense"] / times[batch][mode]
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 4096])
    every = [name for name in torchldr.structures() if name != "dense"]
    parser.add_argument("--structures", nargs="+", choices=every, default=every)
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long each file is timed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    import onnxruntime

    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, n, rank in cases(options.sizes, options.structures):
            rows += measure(name, n, rank, Path(folder), options.seconds)
            print(name, n, rank, file=sys.stderr)
    if options.out.exists():  # what was not measured now is kept
        measured = {(row["structure"], row["n"]) for row in rows}
        before = json.loads(options.out.read_text())["rows"]
        rows += [row for row in before if (row["structure"], row["n"]) not in measured]
    rows.sort(key=lambda row: (row["n"], row["rank"] or 1, row["structure"]))
    content = {"machine": {**machine(), "onnxruntime": onnxruntime.__version__}, "rows": rows}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
