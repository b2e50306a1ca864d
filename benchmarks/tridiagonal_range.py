"""How large products of raw LDR-TD matrices become, and what their rounding in float32 costs.

    python benchmarks/tridiagonal_range.py [--sizes 1024 4096 8192 16384] [--seeds 5]

Rank 1, operators not divided by their growth: subdiagonal 1 + .05 z, diagonal and superdiagonal .1 z, corners
0 or .3 z, z uniform on [-1, 1] or normal, G and H normal, one normal vector x. For each size and kind:

    within            for how many seeds M x lies within the range of float32
    least, largest    log10 of the largest entry of M x, over seeds
    least_error, largest_error    of the float32 product where M x is within, over the largest entry of M x

The reference is the same product in float64. Rows go to results/bench/tridiagonal_range.json (--out).
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchldr import LDRTridiagonal
from torchldr.timing import machine

KINDS = "uniform", "normal"


def near_shifts(kind: str, corners: float, n: int, seed: int) -> LDRTridiagonal:
    """A matrix of near shifts, in float32."""
    generator = torch.Generator().manual_seed(seed)

    def z(size: int) -> Tensor:
        if kind == "normal":
            return torch.randn(size, generator=generator)
        return 2 * torch.rand(size, generator=generator) - 1

    tensors = {}
    for side, vector in zip("AC", "GH", strict=True):
        tensors[f"subdiagonal_{side}"] = 1 + 0.05 * z(n - 1)
        tensors[f"diagonal_{side}"] = 0.1 * z(n)
        tensors[f"superdiagonal_{side}"] = 0.1 * z(n - 1)
        tensors[f"corners_{side}"] = corners * z(2)
        tensors[vector] = torch.randn(1, n, generator=generator)
    return LDRTridiagonal(n, n, **tensors)


def row(kind: str, corners: float, n: int, seeds: int) -> dict[str, Any]:
    sizes, errors = [], []
    for seed in range(seeds):
        M = near_shifts(kind, corners, n, seed)
        x = torch.randn(1, n, generator=torch.Generator().manual_seed(seed))
        exact = M.double().matmul(x.double(), product="fast")
        sizes.append(float(exact.abs().max()))
        if sizes[-1] < torch.finfo(torch.float32).max:
            errors.append(float((M.matmul(x, product="fast") - exact).abs().max()) / sizes[-1])
    found = {"kind": kind, "corners": corners, "n": n, "seeds": seeds, "within": len(errors)}
    found |= {"least": math.log10(min(sizes)), "largest": math.log10(max(sizes))}
    known = [error for error in errors if error < math.inf]  # powers may overflow on the way
    return found | {"least_error": min(known, default=None), "largest_error": max(known, default=None)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 4096, 8192, 16384])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/bench/tridiagonal_range.json"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    for n in options.sizes:
        for kind in KINDS:
            for corners in (0.0, 0.3):
                rows.append(row(kind, corners, n, options.seeds))
                print(rows[-1], flush=True)
    options.out.write_text(json.dumps({"machine": machine(), "clock": "wall", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
