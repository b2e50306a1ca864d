"""Steps of training on a CPU: nn.Linear's time over ours, one thread and two, eager and compiled.

    python benchmarks/training.py [eager] [compiled] [--threads 1 2] [--out results/bench/training_cpu.json]

eager: forward and backward of one layer with gradients of all its parameters (x needs none), float32, as the
layer comes, by the product that it takes. `corners` says whether the corners of operators are other than 0.
compiled: an MLP of two layers of 1024 and 128 rows by `torch.compile`, for each class: its step beside our
eager step and the compiled step of nn.Linear, and the first compiled step, in a fresh process with an empty
cache. `views_again` is the compiled step with torch._functorch.config.recompute_views: without it torch keeps
ReLU's mask where a view of its result goes on, and writes that mask slowly. Times are minima over rounds in
which both sides take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchldr
from torchldr import StructuredLinear
from torchldr.timing import machine, minimum_seconds

OUT = Path(__file__).resolve().parents[1] / "results" / "bench" / "training_cpu.json"
RANK_1 = [(n, 64) for n in (128, 256, 512, 784, 1024, 2048)] + [(784, 256), (1024, 256)]
RANK_4 = [(256, 64), (784, 64), (1024, 64), (784, 256), (1024, 256)]
TRIDIAGONAL = [(256, 64), (784, 64), (1024, 64)]
CELLS = [
    *(("ldr_sd", 1, *cell) for cell in RANK_1),
    *(("ldr_sd", 4, *cell) for cell in RANK_4),
    *(("toeplitz_like", 4, *cell) for cell in RANK_4),
    *(("hankel_like", 4, *cell) for cell in RANK_4),
    *(("ldr_td", 1, *cell) for cell in TRIDIAGONAL),
]
RANKS = {"toeplitz_like": 4, "hankel_like": 4, "low_rank": 16, "cauchy_like": 4, "vandermonde_like": 4}


def step(model: nn.Module, rows: int) -> Callable[[], object]:
    parameters = list(model.parameters())
    n = next(m.in_features for m in model.modules() if isinstance(m, (nn.Linear, StructuredLinear)))
    x, target = torch.randn(rows, n), torch.randn(rows, n)
    return lambda: torch.autograd.grad(model(x), parameters, target)


def eager(threads: int) -> Iterator[dict[str, Any]]:
    torch.manual_seed(0)  # the same corners for every number of threads: heavy ones take longer
    for name, rank, n, rows in CELLS:
        for corners in (False, True) if name.startswith("ldr") else (False,):
            layer = StructuredLinear(n, n, structure=name, rank=rank)
            if corners:
                with torch.no_grad():
                    for key, p in layer.named_parameters():
                        if key.startswith("corner"):
                            p.uniform_(-1, 1)
            best = minimum_seconds({"ours": step(layer, rows), "dense": step(nn.Linear(n, n), rows)}, 30, 0.6)
            row = {"structure": name, "rank": rank, "n": n, "rows": rows, "corners": corners}
            taken = layer.products(torch.empty(rows, n)).taken
            yield {**row, "threads": threads, "taken": taken, **best, "ratio": best["dense"] / best["ours"]}


def mlp(name: str) -> nn.Module:
    options: dict[str, Any] = {"structure": name}
    if name in RANKS:
        options["rank"] = RANKS[name]

    def layer() -> nn.Module:
        return nn.Linear(1024, 1024) if name == "nn.Linear" else StructuredLinear(1024, 1024, **options)

    return nn.Sequential(layer(), nn.ReLU(), layer())


def compiled(name: str, threads: int) -> dict[str, Any]:
    """In this process, whose caches are empty."""
    model = mlp(name)
    calls = {"eager": step(model, 128), "compiled": step(torch.compile(model), 128)}
    start = time.perf_counter()
    calls["compiled"]()
    first = time.perf_counter() - start
    best = minimum_seconds(calls, 15, 0.6)
    torch.compiler.reset()
    with torch._functorch.config.patch(recompute_views=True):
        calls = {"eager": calls["eager"], "views_again": step(torch.compile(model), 128)}
        best = minimum_seconds(calls, 15, 0.6) | best
    return {"structure": name, "threads": threads, "first_s": first, **best}


def in_fresh_process(name: str, threads: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, __file__, "--one", name, "--threads", str(threads)]
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
        text = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["eager", "compiled"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if arguments.one:
        torch.set_num_threads(arguments.threads[0])
        print(json.dumps(compiled(arguments.one, arguments.threads[0])))
        return
    found = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    found["machine"] = machine()
    if "eager" in arguments.parts:
        found["eager"] = []
        for threads in arguments.threads:
            torch.set_num_threads(threads)
            for row in eager(threads):
                found["eager"].append(row)
                print(*(f"{v:.3g}" if isinstance(v, float) else v for v in row.values()), flush=True)
    if "compiled" in arguments.parts:
        found["compiled"], dense = [], in_fresh_process("nn.Linear", arguments.threads[0])
        for name in ["nn.Linear", *torchldr.structures()]:
            row = in_fresh_process(name, arguments.threads[0])
            row["over_eager"] = row["eager"] / row["compiled"]
            row["views_again_over_eager"] = row["eager"] / row["views_again"]
            row["over_dense"] = dense["compiled"] / row["compiled"]
            row["first_more_s"] = row["first_s"] - dense["first_s"]
            found["compiled"].append(row)
            print(*(f"{v:.3g}" if isinstance(v, float) else v for v in row.values()), flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
