"""For how many LDR-TD layers the port product is accepted, by size and spread, and why others are refused.

    python benchmarks/tridiagonal_share.py [--sizes 1024 4096] [--spreads .5 1 2] [--seeds 10] [--picture PNG]

Operators are not divided by their growth: subdiagonal 1 + .05 s z, diagonal and superdiagonal .1 s z, corners
0 or .3 s z, z uniform on [-1, 1] or normal, s the spread, G and H normal, rank 1. For each case one row with

    accepted        how many seeds `judge` accepts
    representable   for how many the matrix times a random vector stays within float32
    bound           the largest share of |factors||x| that no input of an accepted layer can be off by
    found           the largest that a search over inputs came upon in these
    reasons         what was said of each seed

Rows are put into results/bench/tridiagonal_share.json (--out), in place of those of the same case, as soon as
they are known. --picture draws what the file has.

With --range no operator is judged; results/bench/tridiagonal_range.json gets for each case `within`, as
`representable` above, log10 of the largest entry of a result (`least` and `largest` over seeds), and the
least and largest error of a float32 layer's stencil over a mean of |factors||x|, where results are within.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from port_speed import as_it_comes, wide, write

from torchldr.functional import tridiagonal
from torchldr.functional.port import acceptance

FLOAT32 = torch.finfo(torch.float32).max


def row(kind: str, corners: float, spread: float, n: int, seeds: int) -> dict[str, Any]:
    verdicts, fitting = [], 0
    for seed in range(seeds):
        A, C = as_it_comes(kind, corners, n, seed, "cpu", spread)
        verdicts.append(acceptance.judge(A, C))
        x = torch.randn(1, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        y, _ = acceptance.stencil_product(wide(A), wide(C), x, torch.ones(n, dtype=torch.float64))
        fitting += bool((y.abs() < FLOAT32).all())
    accepted = [verdict for verdict in verdicts if verdict.ports is not None]
    return {
        "kind": kind,
        "corners": corners,
        "spread": spread,
        "n": n,
        "seeds": seeds,
        "accepted": len(accepted),
        "representable": fitting,
        "bound": max((verdict.bound for verdict in accepted), default=None),
        "found": max((verdict.found for verdict in accepted), default=None),
        "tolerance": acceptance.tolerance(n),
        "reasons": [verdict.reason for verdict in verdicts],
    }


def ranged(kind: str, corners: float, spread: float, n: int, seeds: int) -> dict[str, Any]:
    sizes, errors = [], []
    for seed in range(seeds):
        A, C = as_it_comes(kind, corners, n, seed, "cpu", spread)
        x = torch.randn(1, n, generator=torch.Generator().manual_seed(seed))
        exact = tridiagonal.product(wide(A), wide(C), x.double())
        sizes.append(float(exact.abs().max()))
        if sizes[-1] < FLOAT32:
            _, _, weights = acceptance.profile(wide(A), wide(C), n)
            mean = float((weights * x.double().abs()).sum())
            errors.append(float((tridiagonal.product(A, C, x) - exact).abs().max()) / mean)
    found = {"kind": kind, "corners": corners, "spread": spread, "n": n, "seeds": seeds}
    found |= {"within": len(errors), "least": math.log10(min(sizes)), "largest": math.log10(max(sizes))}
    known = [error for error in errors if error < math.inf]  # not where powers overflow on the way
    return found | {"least_error": min(known, default=None), "largest_error": max(known, default=None)}


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib.pyplot as plt

    kinds = sorted({(r["kind"], r["corners"]) for r in rows}, key=lambda k: (k[0] == "normal", k[1]))
    spreads, sizes = sorted({r["spread"] for r in rows}), sorted({r["n"] for r in rows})
    figure, axes = plt.subplots(1, len(kinds), figsize=(2.9 * len(kinds), 2.6), sharey=True, squeeze=False)
    for axis, (kind, corners) in zip(axes[0], kinds, strict=True):
        for r in rows:
            if (r["kind"], r["corners"]) != (kind, corners):
                continue
            at = sizes.index(r["n"]), spreads.index(r["spread"])
            share = r["accepted"] / r["seeds"]
            axis.add_patch(plt.Rectangle((at[0] - 0.5, at[1] - 0.5), 1, 1, color=plt.cm.viridis(share)))
            colour = "black" if share > 0.5 else "white"
            axis.text(
                *at, f"{r['accepted']}/{r['seeds']}", ha="center", va="center", color=colour, fontsize=9
            )
        axis.set_xlim(-0.5, len(sizes) - 0.5)
        axis.set_ylim(-0.5, len(spreads) - 0.5)
        axis.set_xticks(range(len(sizes)), [str(n) for n in sizes], fontsize=8)
        axis.set_yticks(range(len(spreads)), [f"{s:g}" for s in spreads])
        axis.set_title(f"{kind}, {'corners' if corners else 'no corners'}", fontsize=9)
        axis.set_xlabel("n")
    axes[0, 0].set_ylabel("spread")
    figure.savefig(path, dpi=150, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--spreads", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    parser.add_argument("--corners", type=float, nargs="+", default=[0.0, 0.3])
    parser.add_argument("--kinds", nargs="+", default=["uniform", "normal"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--range", action="store_true")
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    measure, name = (ranged, "tridiagonal_range") if options.range else (row, "tridiagonal_share")
    out = options.out or Path(f"results/bench/{name}.json")
    for n in options.sizes:
        for kind in options.kinds:
            for corners in options.corners:
                for spread in options.spreads:
                    found = measure(kind, corners, spread, n, options.seeds)
                    write(out, [found])
                    print(found, flush=True)
    if options.picture:
        draw(write(out, []), options.picture)


if __name__ == "__main__":
    main()
