"""How good the choice between a class's two products is: both timed over a grid, and the regret of the rule.

    python benchmarks/products.py [--device cuda] [--dtype bfloat16] [--quick] [--out FILE]

For each class, size, rank and number of rows, the `fast` and the `dense` product take turns, in training
(forward and backward of a layer) and frozen (`torchldr.freeze`, no gradients). Regret is the time of the
product that `cls.fast_pays` takes over the time of the faster one. Prints its median, its 95th percentile and
the worst cells of each class; the rows go to a JSON file. Sizes whose dense matrix may not be made leave no
choice and are skipped. Cells come in a random order, so that a run cut short by `--minutes` is a fair sample.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import torchldr
from torchldr import StructuredLinear
from torchldr.core.choice import LARGEST
from torchldr.timing import machine, minimum_seconds

SIZES = tuple(64 << i for i in range(10))
ROWS = (1, 4, 16, 64, 256, 1024, 4096)
RANKS = (1, 4, 16)
PRODUCTS = ("fast", "dense")
SLOW = 0.3  # seconds: a longer call is timed once
WORK = {"cpu": 2.0**33, "cuda": 2.0**40}  # multiply-adds of the dense product, at most


class Group(NamedTuple):
    """The cells that share their layers."""

    structure: str
    n: int
    rank: int
    frozen: bool


class Place(NamedTuple):
    device: str
    dtype: torch.dtype


def groups(arguments: argparse.Namespace) -> list[Group]:
    sizes = arguments.n or (SIZES[:6:2] if arguments.quick else SIZES)
    ranks = arguments.rank or (RANKS[:1] if arguments.quick else RANKS)
    found = []
    for name in arguments.structures or torchldr.structures():
        cls = torchldr.get_structure(name)
        if not cls.structured:
            continue
        own = ranks if cls.ranked else (1,)
        sized = [n for n in sizes if n * n <= LARGEST[arguments.device]]
        found += [Group(name, *cell) for cell in itertools.product(sized, own, (False, True))]
    random.Random(arguments.seed).shuffle(found)
    return found


def layer_of(group: Group, place: Place) -> StructuredLinear:
    torch.manual_seed(0)
    rank = group.rank if torchldr.get_structure(group.structure).ranked else None
    return StructuredLinear(group.n, group.n, structure=group.structure, rank=rank, **place._asdict())


def modules(group: Group, place: Place) -> dict[str, nn.Module]:
    """The layer by either product, in training or frozen."""
    made: dict[str, nn.Module] = {}
    for product in PRODUCTS:
        layer = layer_of(group, place)
        layer.product = product
        made[product] = torchldr.freeze(layer) if group.frozen else layer
    return made


def call_of(module: nn.Module, x: Tensor, frozen: bool) -> Callable[[], None]:
    grad = torch.ones_like(x)

    def call() -> None:
        if frozen:
            with torch.no_grad():
                module(x)
        else:
            module.zero_grad()
            module(x).backward(grad)
        if x.is_cuda:
            torch.cuda.synchronize()

    return call


def seconds_of(calls: dict[str, Callable[[], None]]) -> dict[str, float]:
    """The shortest time of each, alternating; slow calls are repeated less."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(4):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
        if max(best.values()) > SLOW:
            return best
    if max(best.values()) > 8 * min(best.values()):
        return best
    return minimum_seconds(calls, repeats=5, seconds=0.01)


def cells(group: Group, rows: tuple[int, ...], place: Place) -> Iterator[dict[str, Any]]:
    made = modules(group, place)
    layer = layer_of(group, place)
    for b in rows:
        if b > 1 and group.n**2 * b > WORK[place.device]:
            continue
        x = torch.randn(b, group.n, **place._asdict(), requires_grad=not group.frozen)
        calls = {product: call_of(module, x, group.frozen) for product, module in made.items()}
        try:
            for call in calls.values():
                call()  # the first one may compile a kernel
            seconds = seconds_of(calls)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            continue
        taken = layer.matrix().products(b, frozen=group.frozen).taken
        regret = seconds[taken] / min(seconds.values())
        yield group._asdict() | {"rows": b, "seconds": seconds, "taken": taken, "regret": regret}


def print_regret(rows: list[dict[str, Any]]) -> None:
    print(f"{'class':18} {'':9} cells  median    95 %   worst cells: n, rank, rows: taken, regret")
    for frozen, name in itertools.product((False, True), sorted({row["structure"] for row in rows})):
        found = [row for row in rows if row["structure"] == name and row["frozen"] == frozen]
        if not found:
            continue
        found.sort(key=lambda row: -row["regret"])
        worst = [
            f"{row['n']}, {row['rank']}, {row['rows']}: {row['taken']}, {row['regret']:.2f}"
            for row in found[:3]
            if row["regret"] > 1.2
        ]
        numbers = [row["regret"] for row in found]
        what = "frozen" if frozen else "training"
        print(
            f"{name:18} {what:9} {len(found):5} {statistics.median(numbers):7.2f} {high(numbers):7.2f}"
            f"   {'; '.join(worst)}"
        )
    numbers = [row["regret"] for row in rows]
    print(f"{'all':28} {len(rows):5} {statistics.median(numbers):7.2f} {high(numbers):7.2f}")


def high(numbers: list[float]) -> float:
    """The 95th percentile."""
    return sorted(numbers)[int(0.95 * (len(numbers) - 1))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float64"), default="float32")
    parser.add_argument("--structures", nargs="*", help="classes; all by default")
    parser.add_argument("--n", nargs="*", type=int, help="sizes of the square layers")
    parser.add_argument("--rank", nargs="*", type=int)
    parser.add_argument("--rows", nargs="*", type=int)
    parser.add_argument("--quick", action="store_true", help="three sizes, rank 1, 1 and 64 rows")
    parser.add_argument("--seed", type=int, default=0, help="of the order of cells")
    parser.add_argument("--minutes", type=float, help="stop after so long and report the cells so far")
    parser.add_argument("--out", type=Path, help="results/bench/products_DEVICE.json")
    arguments = parser.parse_args()
    out = arguments.out or Path(f"results/bench/products_{arguments.device}.json")
    place = Place(arguments.device, getattr(torch, arguments.dtype))
    sizes = tuple(arguments.rows or ((1, 64) if arguments.quick else ROWS))
    start, rows = time.monotonic(), []
    for group in groups(arguments):
        if arguments.minutes and time.monotonic() - start > 60 * arguments.minutes:
            print(f"stopped after {arguments.minutes:g} minutes")
            break
        rows += cells(group, sizes, place)
    rows.sort(key=lambda row: (row["structure"], row["frozen"], row["n"], row["rank"], row["rows"]))
    print_regret(rows)
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(row) for row in rows)
    out.write_text(f'{{"machine": {json.dumps(machine())},\n"rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
