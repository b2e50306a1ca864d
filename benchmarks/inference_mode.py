"""Layers built or loaded under `torch.inference_mode()` beside the same layers built outside, in inference.

    python benchmarks/inference_mode.py [--device cpu] [--threads 1] [--out results/bench/inference_mode.json]
                                        [--quick] [--n 16384 32768] [--classes ldr_sd]

Every layer has the same numbers and is called in the same way, under `inference_mode`, in float32. It comes
about in one of these ways:

    built       made under inference mode, then filled by `load_state_dict`
    assigned    the same, by `load_state_dict(assign=True)` with tensors made under inference mode
    copied      a `deepcopy` made under inference mode
    moved       built, then taken to float64 and back

Times are minima over rounds in which all take turns; ratio is that way / built outside. On one thread of a
CPU they are CPU time, so that other processes count for less. Exits with 1 where a ratio is above the bar.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchldr import StructuredLinear
from torchldr.timing import machine

BAR = 1.1
CLASSES: dict[str, dict[str, Any]] = {
    "ldr_sd": {"rank": 1},
    "toeplitz_like": {"rank": 4},
    "ldr_td": {"rank": 1},
    "circulant": {},
}
SIZES = 512, 1024, 2048, 4096, 8192, 16384, 32768
BATCHES = 1, 64
LONGEST = 2.0  # seconds of a call; what takes longer is left out
ROUNDS = 40
TURN = 2e-3  # seconds


def ways(n: int, name: str, device: str) -> dict[str, StructuredLinear]:
    """The same layer, by how it came about."""
    make = lambda: StructuredLinear(n, n, structure=name, device=device, **CLASSES[name])
    outside = make().eval()
    numbers = outside.state_dict()
    with torch.inference_mode():
        built, assigned = make().eval(), make().eval()
        built.load_state_dict(numbers)
        assigned.load_state_dict({key: t.clone() for key, t in numbers.items()}, assign=True)
        copied = copy.deepcopy(outside)
        moved = make().eval()
        moved.load_state_dict(numbers)
        moved.double().float()
    return {"outside": outside, "built": built, "assigned": assigned, "copied": copied, "moved": moved}


def seconds(call: Callable[[], object], repeats: int, device: str, clock: Callable[[], float]) -> float:
    begin = clock()
    for _ in range(repeats):
        call()
    if device == "cuda":
        torch.cuda.synchronize()
    return (clock() - begin) / repeats


def shortest(layers: dict[str, StructuredLinear], x: Tensor, rounds: int) -> dict[str, float]:
    """The shortest times of all, in turns; none where a call takes too long."""
    device = x.device.type
    alone = device == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    calls: dict[str, Callable[[], object]] = {
        way: torch.inference_mode()(lambda layer=layer: layer(x)) for way, layer in layers.items()
    }
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    once = min(seconds(calls["outside"], 1, device, clock) for _ in range(3))
    if once > LONGEST:
        return {}
    repeats = max(1, int(TURN / once))
    for _ in range(max(3, min(rounds, int(1.0 / (once * repeats))))):
        for way, call in calls.items():
            best[way] = min(best[way], seconds(call, repeats, device, clock))
    return best


def rows(n: int, names: list[str], rounds: int, device: str) -> Iterator[dict[str, Any]]:
    for name in names:
        options = CLASSES[name]
        layers = ways(n, name, device)
        for batch in BATCHES:
            x = torch.randn(batch, n, device=device)
            with torch.inference_mode():
                results = [layer(x) for layer in layers.values()]
                route = layers["outside"].routes(x).chosen
            assert all(torch.equal(y, results[0]) for y in results), f"{name}, n = {n}: results differ"
            best = shortest(layers, x, rounds)
            if not best:
                print(f"{name} of {n}: skipped, a call takes more than {LONGEST} s", file=sys.stderr)
                continue
            row = {"structure": name, "rank": options.get("rank"), "n": n, "batch": batch, "route": route}
            row["outside_us"] = best.pop("outside") * 1e6
            yield row | {way: t * 1e6 / row["outside_us"] for way, t in best.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--n", nargs="*", type=int, default=SIZES)
    parser.add_argument("--classes", nargs="*", default=[*CLASSES])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    found: list[dict[str, Any]] = []
    for n in arguments.n[:2] if arguments.quick else arguments.n:
        for row in rows(n, arguments.classes, 5 if arguments.quick else ROUNDS, arguments.device):
            found.append(row)
            print(*(f"{v:.3g}" if isinstance(v, float) else v for v in row.values()), flush=True)
        if arguments.out is not None:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps({"machine": machine(), "rows": found}, indent=1) + "\n")
    worst = max(row[way] for row in found for way in ("built", "assigned", "copied", "moved"))
    print(f"the largest ratio is {worst:.2f}, the bar {BAR}")
    return int(worst > BAR)


if __name__ == "__main__":
    sys.exit(main())
