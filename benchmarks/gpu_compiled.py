"""Training and inference of compiled models on a GPU: a residual MLP of structured layers beside nn.Linear.

    python benchmarks/gpu_compiled.py [--quick] [--out results/bench/gpu_compiled.json]

Three blocks x + layer(relu(x)) in bfloat16, AdamW, one run for both sides: ratios are nn.Linear's time over
ours, so above 1 ours is faster. Compiled by `torch.compile` and with mode="reduce-overhead" (CUDA graphs);
the first step of a compiled model counts apart.
Inference is that of `torchldr.freeze(model)`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torchldr
from torchldr.timing import machine

SIZES = ((4096, 4096), (4096, 1024), (1024, 2048))  # rows, features
STRUCTURES = (("ldr_sd", 1), ("toeplitz_like", 4), ("ldr_sd", 8))
MODES = {"eager": None, "compiled": "default", "reduce-overhead": "reduce-overhead"}


class Residual(nn.Module):
    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(make() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x.relu())
        return x


def model(features: int, structure: str | None, rank: int) -> Residual:
    torch.manual_seed(0)
    kind: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    if structure is None:
        return Residual(lambda: nn.Linear(features, features, **kind))
    return Residual(
        lambda: torchldr.StructuredLinear(features, features, structure=structure, rank=rank, **kind)
    )


def training(made: nn.Module, x: Tensor, mode: str | None) -> Callable[[], None]:
    run = made if mode is None else torch.compile(made, mode=mode)
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        run(x).float().square().mean().backward()
        optimizer.step()

    return step


def inference(made: nn.Module, x: Tensor, mode: str | None) -> Callable[[], None]:
    served = torchldr.freeze(made, x)
    run = served if mode is None else torch.compile(served, mode=mode)

    @torch.no_grad()
    def call() -> None:
        run(x)

    return call


def seconds(calls: dict[str, Callable[[], None]], repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """The first call of each, and the shortest of the others, which take turns."""
    first, best = {}, dict.fromkeys(calls, float("inf"))
    for name, call in calls.items():
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        first[name] = time.perf_counter() - start
        for _ in range(3):
            call()
    for _ in range(repeats):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(5):
                call()
            torch.cuda.synchronize()
            best[name] = min(best[name], (time.perf_counter() - start) / 5)
    return first, best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one size, two structures")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = []
    for b, n in SIZES[:1] if given.quick else SIZES:
        x = torch.randn(b, n, device="cuda", dtype=torch.bfloat16)
        for what, make in (("training", training), ("inference", inference)):
            for mode, value in MODES.items():
                for structure, rank in STRUCTURES[:2] if given.quick else STRUCTURES:
                    torch.compiler.reset()
                    calls = {
                        "dense": make(model(n, None, 1), x, value),
                        "ours": make(model(n, structure, rank), x, value),
                    }
                    first, best = seconds(calls, 10)
                    row = {
                        "rows": b, "features": n, "what": what, "mode": mode,
                        "structure": structure, "rank": rank,
                        "ratio": best["dense"] / best["ours"], "ours_ms": best["ours"] * 1e3,
                        "first_s": first["ours"], "dense_first_s": first["dense"],
                    }  # fmt: skip
                    rows.append(row)
                    print(
                        f"{b:5} x {n:5} {what:9} {mode:15} {structure:13} r = {rank}: {row['ratio']:.2f}, "
                        f"first {first['ours']:.1f} s (nn.Linear {first['dense']:.1f} s)",
                        flush=True,
                    )
    if given.out:
        given.out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
