"""Layers in inference as compilers and exporters make them, beside nn.Linear, on a CPU.

    python benchmarks/compiled.py [--n 1024] [--out results/bench/compiled.json]

Microseconds of a call with one thread, the least of several repeats: nn.Linear and a structured layer, eager
and under torch.compile, the structured one frozen too; the layer by torch.export.export and by `to_program`.
"""

from __future__ import annotations

import argparse
import json
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import torchldr
from torchldr.export import to_program

STRUCTURES = ("ldr_sd", "ldr_td", "toeplitz_like", "vandermonde_like", "low_rank", "circulant", "fastfood")


def microseconds(run: Callable[[], Any]) -> float:
    run()
    once = timeit.timeit(run, number=1)
    number = max(1, min(50, int(2e-3 / once)))
    return round(1e6 * min(timeit.repeat(run, number=number, repeat=15)) / number, 1)


def row(structure: str, n: int, batch: int) -> dict[str, Any]:
    layer, dense = torchldr.StructuredLinear(n, n, structure=structure).eval(), torch.nn.Linear(n, n).eval()
    x = torch.randn(batch, n)
    served = torchldr.freeze(layer, x)
    torch.compiler.reset()
    programs: dict[str, Callable[[torch.Tensor], Any]] = {
        "linear": dense,
        "linear_compiled": torch.compile(dense),
        "eager": layer,
        "compiled": torch.compile(layer),
        "frozen": served,
        "frozen_compiled": torch.compile(served),
        "export": torch.export.export(layer, (x,)).module(),
        "to_program": to_program(layer, x).module(),
        "to_program_dense": to_program(layer, x, mode="dense").module(),
    }
    times = {name: microseconds(lambda run=run: run(x)) for name, run in programs.items()}  # type: ignore[misc]
    return {"structure": structure, "n": n, "batch": batch, **times}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--n", type=int, default=1024)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with torch.no_grad():
        for structure in STRUCTURES:
            for batch in (1, 8, 64):
                rows.append(row(structure, chosen.n, batch))
                print(rows[-1], flush=True)
    if chosen.out is not None:
        chosen.out.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
