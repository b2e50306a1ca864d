"""The speed floor of the core: structured against dense in one run, on this machine's CPU.

    python benchmarks/core_speed.py [--out results/bench/core_speed.json]

Inference: batch 1, n = 4096, the "fast" plan of a layer without bias against torch.mv. Training step:
forward and backward at n = 1024, batch 50, against nn.Linear. Every ratio is dense time / our time, both
minima over at least 20 rounds in turn. Exits with 1 where a floor is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from torchldr import StructuredLinear
from torchldr.timing import machine, minimum_seconds

FLOORS = {
    ("inference", "ldr_sd"): 4.0,
    ("training", "ldr_sd"): 0.4,
    ("training", "toeplitz_like"): 0.6,
    ("training", "ldr_td"): 0.1,
}


def inference(structure: str, n: int = 4096) -> dict[str, float]:
    layer = StructuredLinear(n, n, bias=False, structure=structure).eval()
    layer.plan = "fast"
    W, x = torch.randn(n, n), torch.randn(n)
    with torch.no_grad():
        return minimum_seconds({"dense": lambda: torch.mv(W, x), "ours": lambda: layer(x)})


def training(structure: str, n: int = 1024, batch: int = 50) -> dict[str, float]:
    x, target = torch.randn(batch, n, requires_grad=True), torch.randn(batch, n)

    def step(layer: torch.nn.Module) -> None:
        layer.zero_grad(set_to_none=True)
        x.grad = None
        layer(x).backward(target)

    dense, ours = torch.nn.Linear(n, n), StructuredLinear(n, n, structure=structure)
    return minimum_seconds({"dense": lambda: step(dense), "ours": lambda: step(ours)})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    torch.manual_seed(0)
    rows = []
    for (what, structure), floor in FLOORS.items():
        seconds = (inference if what == "inference" else training)(structure)
        ratio = seconds["dense"] / seconds["ours"]
        rows.append(
            {
                "what": what,
                "structure": structure,
                "rank": 1,
                "dense_ms": seconds["dense"] * 1e3,
                "ours_ms": seconds["ours"] * 1e3,
                "ratio": ratio,
                "floor": floor,
            }
        )
        times = f"dense {seconds['dense'] * 1e3:8.3f} ms   ours {seconds['ours'] * 1e3:8.3f} ms"
        verdict = "ok" if ratio >= floor else "MISSED"
        print(f"{what:10} {structure:14} {times}   ratio {ratio:6.2f}   floor {floor:4.2f}   {verdict}")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    return int(any(row["ratio"] < row["floor"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
