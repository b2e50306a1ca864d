"""The paper's tables of speed on this machine's CPU: one vector, dense time over ours.

    python benchmarks/cpu_speed.py [ldr_sd ...] [--out results/bench/ldr_sd_speed.json] [--quick]

n x n layers without bias, subdiagonals 1 + 0.001 N(0, 1), float32, frozen with their fast product
(`torchldr.freeze`), against `torch.mv`. Times are minima over at least 20 rounds in turns. gain.py has what
a layer gains as one calls it, products.py how good the choice of a product is.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from torchldr import StructuredLinear, freeze
from torchldr.timing import machine, minimum_seconds
from torchldr_paper.bench.paper_values import RANKS, SIZES, acceleration, in_paper

OUT = Path(__file__).resolve().parents[1] / "results" / "bench" / "ldr_sd_speed.json"
SPREAD = 0.001  # of the subdiagonals around 1


def served(structure: str, n: int, rank: int) -> torch.nn.Module:
    layer = StructuredLinear(n, n, bias=False, structure=structure, rank=rank)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.startswith("subdiagonal"):
                parameter.normal_(1, SPREAD)
    layer.product = "fast"
    return freeze(layer)


@torch.no_grad()
def cells(structure: str, n: int, ranks: tuple[int, ...]) -> list[dict[str, Any]]:
    """The row of a table: every rank beside one dense product, which is never timed in our favour."""
    W, x = torch.full((n, n), n**-0.5), torch.randn(n)
    calls: dict[str, Callable[[], object]] = {"dense": partial(torch.mv, W, x)}
    calls |= {str(rank): partial(served(structure, n, rank), x) for rank in ranks}
    seconds = minimum_seconds(calls, seconds=0.08)
    return [
        {
            "structure": structure, "n": n, "rank": rank, "dense_ms": seconds["dense"] * 1e3,
            "ours_ms": seconds[str(rank)] * 1e3, "ratio": seconds["dense"] / seconds[str(rank)],
            "paper": acceleration(structure, n, rank),
        }
        for rank in ranks
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("structures", nargs="*", default=["ldr_sd"], help=", ".join(in_paper()))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--quick", action="store_true", help="two sizes, rank 1; nothing is written")
    arguments = parser.parse_args()
    if unknown := set(arguments.structures) - set(in_paper()):
        parser.error(f"no table of {', '.join(unknown)} in the paper. Known: {', '.join(in_paper())}.")
    torch.manual_seed(0)
    sections: dict[str, list[dict[str, Any]]] = {}
    for structure in arguments.structures:
        rows = sections.setdefault(structure, [])
        for n in SIZES[:2] if arguments.quick else SIZES:
            for row in cells(structure, n, (1,) if arguments.quick else tuple(RANKS)):
                rows.append(row)
                print(*(f"{v:.4g}" if isinstance(v, float) else v for v in row.values()), flush=True)
    if not arguments.quick:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"machine": machine(), "sections": sections}, indent=1) + "\n")


if __name__ == "__main__":
    main()
