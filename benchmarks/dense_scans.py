"""Dense matrices of LDR-SD, Toeplitz- and Hankel-like classes on a CPU: compiled scans against doubling.

    python benchmarks/dense_scans.py [--threads 1 2 8] [--out results/bench/dense_scans.json]

Both make the same matrix of rank 2 in float32, and all its gradients; doubling, in operations of torch, is
what serves without Numba. They take turns; times are minima over repeats, a ratio is doubling's time over the
scan's.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from torchldr import StructuredLinear
from torchldr.functional import row_scan
from torchldr.timing import machine, minimum_seconds


def without_scans() -> AbstractContextManager[Any]:
    return mock.patch.object(row_scan, "serves", return_value=False)


def calls(structure: str, n: int) -> Iterator[tuple[str, dict[str, Callable[[], object]]]]:
    """What is timed, each by scans and by doubling."""
    M = StructuredLinear(n, n, structure=structure, rank=2).matrix()
    wanted, gradient = [t for t in M.tensors.values() if t.requires_grad], torch.randn(n, n)

    def matrix(way: Callable[[], AbstractContextManager[Any]]) -> None:
        with way(), torch.no_grad():
            M.dense_in(torch.float32)

    def gradients(way: Callable[[], AbstractContextManager[Any]]) -> None:
        with way():
            torch.autograd.grad(M.dense_in(torch.float32), wanted, gradient)

    for what, call in (("matrix", matrix), ("with gradients", gradients)):
        yield (
            what,
            {
                "scan": lambda call=call: call(nullcontext),
                "doubling": lambda call=call: call(without_scans),
            },
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 1024, 2048])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    about, rows = machine() | {"device": "cpu"}, []
    for structure in ("ldr_sd", "toeplitz_like", "hankel_like"):
        for n in arguments.sizes:
            for threads in arguments.threads:
                torch.set_num_threads(threads)
                for what, both in calls(structure, n):
                    ms = {name: 1e3 * s for name, s in minimum_seconds(both, repeats=5, seconds=0.05).items()}
                    row: dict[str, Any] = {"structure": structure, "n": n, "threads": threads, "what": what}
                    row |= {f"{name}_ms": round(value, 3) for name, value in ms.items()}
                    rows.append(row | {"ratio": ms["doubling"] / ms["scan"]})
                    print(rows[-1], flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps({"machine": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
