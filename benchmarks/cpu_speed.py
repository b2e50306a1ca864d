"""Speed, growth and memory on this machine's CPU, against dense layers and the paper.

    python benchmarks/cpu_speed.py [SECTION ...] [--out results/bench/cpu_speed.json]

    cells        batch 1, the "fast" plan, subdiagonals 1 + 0.001 N: the paper's three tables of 35 cells
    hard         LDR-SD with subdiagonals uniform in [.5, 1.5], with exact zeros, and 0.8, over near one
    training     forward and backward, batch 50, against nn.Linear
    auto         the "auto" plan against nn.Linear, n = 16 .. 32768, batch 1, 8, 50, 256
    growth       LDR-SD from 2^12 to 2^16: time and peak memory of each doubling
    memory       peak memory of LDR-TD inference at n = 16384, above the import
    million      LDR-SD at n = 2^20, forward and backward
    operations   operations that one forward dispatches
    floor        bandwidth, multiply and FFT rates of this machine, and what they allow

Without names all of them run, in under six minutes on an idle machine of two cores. Sections that are not
run keep what the file holds. Ratios are dense time / our time, minima over at least 20 rounds in turn.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchldr import StructuredLinear
from torchldr.bench.grid import INFERENCE, TRAINING, Case
from torchldr.bench.measure import Setting, as_row, dense_side, measure, structured_layer, structured_side
from torchldr.bench.paper_values import RANKS, SIZES, in_paper
from torchldr.timing import machine, minimum_seconds

Rows = list[dict[str, Any]]
OUT = Path(__file__).resolve().parents[1] / "results" / "bench" / "cpu_speed.json"


def cells() -> Rows:
    setting = Setting(seconds=0.08)
    cases = [Case(INFERENCE, s, n, rank, 1) for n in SIZES for s in in_paper() for rank in RANKS]
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


def _regimes(n: int) -> dict[str, StructuredLinear]:
    """LDR-SD layers of rank 1 that differ in their subdiagonals alone."""
    uniform = torch.empty(n - 1).uniform_(0.5, 1.5)
    zeros = torch.empty(n - 1).normal_(1, 0.001)
    zeros[torch.randperm(n - 1)[: n // 16]] = 0
    drawn = {"uniform [.5, 1.5]": uniform, "exact zeros": zeros, "0.8": torch.full((n - 1,), 0.8)}
    layers = {"near one": structured_layer("ldr_sd", n, 1)}
    for name, values in drawn.items():
        layers[name] = structured_layer("ldr_sd", n, 1)
        with torch.no_grad():
            layers[name].subdiagonal_A.copy_(values)
            layers[name].subdiagonal_C.copy_(values)
    return layers


@torch.no_grad()
def hard() -> Rows:
    rows: Rows = []
    for n in (4096, 8192, 16384):
        layers, x = _regimes(n), torch.randn(n)
        for layer in layers.values():
            layer.eval().plan = "fast"
        seconds = minimum_seconds({name: partial(layer, x) for name, layer in layers.items()})
        for name, layer in layers.items():
            slower = seconds[name] / seconds["near one"]
            row = {"n": n, "regime": name, "ours_ms": seconds[name] * 1e3, "slower": slower}
            rows.append({**row, "path": layer.routes().chosen})
    return rows


def training() -> Rows:
    cases = [(s, 1024, 1) for s in ("low_rank", "toeplitz_like", "ldr_sd", "ldr_td")]
    cases += [(s, 4096, 1) for s in ("toeplitz_like", "ldr_sd", "ldr_td")]
    cases += [(s, 1024, 16) for s in ("toeplitz_like", "ldr_sd")]
    setting = Setting(repeats=20, seconds=0.5)
    return [measure(Case(TRAINING, s, n, r, 50), setting) for s, n, r in cases]


def auto() -> Rows:
    setting = Setting(plan="auto", repeats=20, seconds=0.1, dense_work=2.0**31)
    sizes = [2**power for power in range(4, 16)]
    cases = [Case(INFERENCE, "ldr_sd", n, 1, b) for n in sizes for b in (1, 8, 50, 256)]
    cases += [Case(INFERENCE, "toeplitz_like", n, 4, b) for n in sizes[4:8] for b in (1, 50)]
    rows = []
    for case in cases:
        # 20 rounds of the largest would take minutes; minima settle sooner for long calls.
        rounds = 20 if case.batch * case.n**2 <= 2**28 else 5
        rows.append(measure(case, setting._replace(repeats=rounds)))
    return rows


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


class _Counter(TorchDispatchMode):
    """Names of the operations that are dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def operations(n: int = 1024) -> Rows:
    rows: Rows = []
    for structure in ("ldr_sd", "toeplitz_like", "low_rank"):
        for mode in ("training", "inference"):
            layer, x = structured_layer(structure, n, 1), torch.randn(50, n)
            layer.train(mode == "training").plan = "fast"
            with torch.set_grad_enabled(mode == "training"):
                layer(x)
                with _Counter() as counter:
                    layer(x)
            rows.append({"structure": structure, "n": n, "mode": mode, "operations": len(counter.names)})
    return rows


@torch.no_grad()
def floor() -> Rows:
    """Rates of this machine, then the least time that LDR-SD, r = 1, and a dense product can take."""
    n = 8192
    W, v, X = torch.full((n, n), 0.01), torch.randn(n), torch.randn(512, 2048)
    square = torch.full((2048, 2048), 0.01)
    best = minimum_seconds(
        {"mv": partial(torch.mv, W, v), "mm": partial(torch.nn.functional.linear, X, square)}, seconds=0.3
    )
    bandwidth, multiply = 4 * n * n / best["mv"], 2 * X.numel() * 2048 / best["mm"]
    rows: Rows = [
        {"what": "bandwidth of torch.mv, GB/s", "value": bandwidth / 1e9},
        {"what": "rate of a matrix product, GFLOP/s", "value": multiply / 1e9},
    ]
    for size in SIZES:
        one, many = torch.randn(2 * size), torch.randn(64, 2 * size)
        transforms = {"one": partial(torch.fft.rfft, one), "many": partial(torch.fft.rfft, many)}
        seconds = minimum_seconds(transforms, seconds=0.1)
        flops = 2.5 * 2 * size * math.log2(2 * size)
        layer = structured_layer("ldr_sd", size, 1).eval()
        layer.plan = "fast"
        ours = minimum_seconds({"ours": partial(layer, one[:size])}, seconds=0.1)["ours"]
        rows.append(
            {
                "what": "LDR-SD r = 1",
                "n": size,
                "ours_ms": ours * 1e3,
                "four_ffts_ms": 4 * seconds["one"] * 1e3,
                "four_batched_ffts_ms": 4 * seconds["many"] / 64 * 1e3,
                "fft_gflops": flops / seconds["one"] / 1e9,
                "batched_fft_gflops": 64 * flops / seconds["many"] / 1e9,
                "dense_bytes_ms": 4 * size * size / bandwidth * 1e3,
            }
        )
    return rows


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


SECTIONS: dict[str, Callable[[], Rows]] = {
    f.__name__: f for f in (cells, hard, training, auto, growth, memory, million, operations, floor)
}
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
