"""Speed, growth and memory on this machine's CPU, against dense layers and the paper.

    python benchmarks/cpu_speed.py [SECTION ...] [--out results/bench/cpu_speed.json]

    ldr_sd       batch 1, the "fast" plan, subdiagonals 1 + 0.001 N: the paper's table of 35 cells
    cells        the same for all three tables of the paper
    growth       LDR-SD from 2^12 to 2^16: time and peak memory of each doubling
    memory       peak memory of LDR-TD inference at n = 16384, above the import
    million      LDR-SD at n = 2^20, forward and backward

Without names all of them run. Sections that are not run keep what the file holds. Ratios are dense time / our
time, minima over at least 20 rounds in turn. What a layer gains as one calls it is in gain.py, how good its
choice of a route is in routes.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from torchldr.timing import machine, minimum_seconds
from torchldr_paper.bench.grid import INFERENCE, Case
from torchldr_paper.bench.measure import (
    Setting,
    as_row,
    dense_side,
    measure,
    structured_layer,
    structured_side,
)
from torchldr_paper.bench.paper_values import RANKS, SIZES, in_paper

Rows = list[dict[str, Any]]
OUT = Path(__file__).resolve().parents[1] / "results" / "bench" / "cpu_speed.json"


def cells(structures: Sequence[str] | None = None) -> Rows:
    setting = Setting(seconds=0.08)
    cases = [
        Case(INFERENCE, s, n, rank, 1) for n in SIZES for s in structures or in_paper() for rank in RANKS
    ]
    # Up to 4096 one by one, so that a dense matrix that fits in a cache may stay there. Larger ones
    # stream from memory whatever is between: all cells of a size take turns with one dense product.
    rows = [measure(case, setting) for case in cases if case.n <= 4096]
    for n in SIZES[4:]:
        group = [case for case in cases if case.n == n]
        sides = {case: structured_side(case, setting) for case in group}
        calls = {"dense": dense_side(group[0], setting)} | {str(c): call for c, (call, _) in sides.items()}
        seconds = minimum_seconds(calls, seconds=setting.seconds)
        rows += [as_row(c, seconds["dense"], seconds[str(c)], path) for c, (_, path) in sides.items()]
    # One dense product a size: where its matrix happens to lie in memory may double its time, so the
    # best of all is taken, which is never in our favour.
    for row in rows:
        row["dense_ms"] = min(other["dense_ms"] for other in rows if other["n"] == row["n"])
        row["ratio"] = row["dense_ms"] / row["ours_ms"]
    return rows


def ldr_sd() -> Rows:
    return cells(["ldr_sd"])


def growth() -> Rows:
    sizes = [2**power for power in range(12, 17)]
    rows: Rows = []
    with torch.no_grad():
        for n in sizes:
            layer, x = structured_layer("ldr_sd", n, 1).eval(), torch.randn(n)
            layer.plan = "fast"
            rows.append({"n": n, "ours_ms": minimum_seconds({"ours": partial(layer, x)})["ours"] * 1e3})
    for row in rows:
        row["peak_mb_batch_256"] = _in_process("peak_of_batch", row["n"])["mb"]
    for before, row in itertools.pairwise(rows):
        for name in ("ours_ms", "peak_mb_batch_256"):
            row[f"{name}_growth"] = row[name] / max(before[name], 1e-9)
    return rows


def memory() -> Rows:
    return [{"structure": "ldr_td", "n": 16384, **_in_process("peak_of_ldr_td", 16384)}]


def million() -> Rows:
    return [{"structure": "ldr_sd", "n": 1 << 20, **_in_process("step", 1 << 20)}]


# What runs in a process of its own, because its peak memory is asked for.


def _peak_mb() -> float:
    """The most memory that this process has held."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count what the parent held before it became this process
        return next(int(t.split()[1]) for t in status.read_text().splitlines() if "VmHWM" in t) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


@torch.no_grad()
def peak_of_batch(n: int) -> dict[str, float]:
    layer = structured_layer("ldr_sd", n, 1).eval()
    layer.plan = "fast"
    x = torch.randn(256, n)
    layer(x[:1])
    before = _peak_mb()
    layer(x)
    return {"mb": _peak_mb() - before}


@torch.no_grad()
def peak_of_ldr_td(n: int) -> dict[str, float]:
    before = _peak_mb()
    layer = structured_layer("ldr_td", n, 1).eval()
    layer.plan = "fast"
    start = time.perf_counter()
    layer(torch.randn(1, n))
    return {"seconds": time.perf_counter() - start, "mb_above_import": _peak_mb() - before}


def step(n: int) -> dict[str, float]:
    before = _peak_mb()
    layer, x = structured_layer("ldr_sd", n, 1), torch.randn(1, n, requires_grad=True)
    start = time.perf_counter()
    layer(x).sum().backward()
    finite = all(bool(p.grad is not None and p.grad.isfinite().all()) for p in layer.parameters())
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "mb_above_import": _peak_mb() - before, "finite": finite}


def _in_process(name: str, n: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--only", name, str(n)]
    # A fixed threshold: what is freed goes back at once, and peaks are those of the tensors.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}
    ran = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return json.loads(ran.stdout)


SECTIONS: dict[str, Callable[[], Rows]] = {f.__name__: f for f in (ldr_sd, cells, growth, memory, million)}
ALONE = {f.__name__: f for f in (peak_of_batch, peak_of_ldr_td, step)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if arguments.only:
        print(json.dumps(ALONE[arguments.only[0]](int(arguments.only[1]))))
        return
    if unknown := set(arguments.sections) - set(SECTIONS):
        parser.error(f"unknown section {', '.join(unknown)}. Known: {', '.join(SECTIONS)}.")
    kept = json.loads(arguments.out.read_text())["sections"] if arguments.out.exists() else {}
    for name in arguments.sections or SECTIONS:
        start = time.perf_counter()
        kept[name] = SECTIONS[name]()
        print(f"\n{name} ({time.perf_counter() - start:.0f} s)", flush=True)
        for row in kept[name]:
            print("  " + "  ".join(f"{key} {_short(value)}" for key, value in row.items()))
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"machine": machine(), "sections": kept}, indent=1) + "\n")


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
