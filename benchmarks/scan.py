"""The CPU's scan and stencil: times beside those of a product with 64 rows and of a copy of the matrix.

    python benchmarks/scan.py [--sizes 256 784] [--ranks 1 4] [--threads 1 2] [--out results/bench/scan.json]

`ldr_sd` has no corners, `corners` both, `shifts` are Toeplitz-like; `ldr_td` makes one Krylov matrix. All in
float32. All take turns; times are minima over repeats, and ratios are over the product.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from torchldr.kernels.cpu import krylov, stein
from torchldr.timing import machine, minimum_seconds


def candidates(n: int, r: int) -> dict[str, Callable[[], object]]:
    """Calls by name: `product`, `copy`, and for each kind its matrix and its gradients."""
    torch.manual_seed(0)
    G, H, D, x = torch.randn(1, r, n), torch.randn(1, r, n), torch.randn(1, n, n), torch.randn(64, n)
    lower_a, lower_c = (1 + 0.01 * torch.randn(1, n - 1) for _ in range(2))
    none, a, c = torch.zeros(1, 1), torch.full((1, 1), 0.4), torch.full((1, 1), -0.7)
    made: dict[str, Callable[[], object]] = {"product": lambda: x @ D[0].mT, "copy": D.clone}
    for name, operators in {
        "ldr_sd": (none, lower_a, none, lower_c),
        "corners": (a, lower_a, c, lower_c),
        "shifts": (1, None, -1, None),
    }.items():
        M = stein.fill(G, H, *operators)

        def fill(operators: tuple[Tensor | int | None, ...] = operators) -> object:
            return stein.fill(G, H, *operators)  # type: ignore[arg-type]

        def gradients(M: Tensor = M, operators: tuple[Tensor | int | None, ...] = operators) -> object:
            return stein.gradients(D, M, G, H, *operators, operators=True)  # type: ignore[arg-type]

        made |= {f"{name}: matrix": fill, f"{name}: gradients": gradients}
    ring = [0.3 * torch.randn(1, n) for _ in range(3)]
    K, dK = krylov.columns(*ring, G, n), torch.randn(1, r, n, n)
    made["ldr_td: matrix"] = lambda: krylov.columns(*ring, G, n)
    made["ldr_td: gradients"] = lambda: krylov.adjoint(*ring, G, K, dK)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 256, 512, 784, 1024, 2048])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        for n in arguments.sizes:
            for r in arguments.ranks:
                times = minimum_seconds(candidates(n, r), repeats=10, seconds=0.1)
                rows.append({"n": n, "rank": r, "threads": threads})
                rows[-1] |= {f"{name}, us": round(1e6 * s, 1) for name, s in times.items()}
                product = times.pop("product")
                rows[-1] |= {f"{name}, ratio": round(s / product, 3) for name, s in times.items()}
                print(
                    n,
                    r,
                    threads,
                    *(f"{name} {1e6 * s:.0f} us" for name, s in times.items()),
                    sep=", ",
                    flush=True,
                )
    if arguments.out:
        arguments.out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
