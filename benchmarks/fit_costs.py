"""Fit the numbers of `torchldr.core.costs` to measured routes, or tell how good their choices are.

    python benchmarks/fit_costs.py results/bench/routes_arm.json [--device cuda] [--steps 400]
    python benchmarks/fit_costs.py results/bench/routes_cpu.json --half 2e-12 --steps 0

The rows of `benchmarks/routes.py` say how long every route took. A choice costs the time of the route that is
chosen over that of the best one; this looks for the constants with the smallest mean logarithm of that which
also come close to the times, by changing one of them at a time, and prints them. Half of the cases are for
looking, the other half for telling. With `--steps 0` it replays the choices of today over the stored times.
It begins with the constants for the CPU that is named in the file; how fast that one is in bfloat16 is not
said there, which is what `--half` is for.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from pathlib import Path
from typing import Any

import torch
from torchldr.core.routes import Call, Sizes

import torchldr
from torchldr.core import costs


def costs_of(row: dict[str, Any], device: str) -> dict[str, float]:
    """What the routes that were timed should take."""
    cls = torchldr.get_structure(row["structure"])
    sizes = Sizes(
        torch.Size((row["n"], row["n"])), row["rank"] if cls.ranked else None, cls.check_options({})
    )
    dtype, training = getattr(torch, row["dtype"]), row["training"]
    torch.set_num_threads(row["threads"])  # which costs depend on
    call = Call(row["batch"], device, dtype, needs_grad=training, kept=not training).sized
    return {route.name: route.seconds(sizes, call) for route in cls.ROUTES if route.name in row["us"]}


def regret(row: dict[str, Any], predicted: dict[str, float]) -> float:
    chosen = min(predicted, key=lambda name: predicted[name])
    return float(row["us"][chosen] / min(row["us"].values()))


def regrets(rows: list[dict[str, Any]], device: str, machine: costs.Machine) -> list[float]:
    costs.MACHINES[device] = machine
    return [regret(row, costs_of(row, device)) for row in rows]


def loss(rows: list[dict[str, Any]], device: str, machine: costs.Machine) -> float:
    """The mean logarithm of regrets, what lies beyond 1.3 once more, and a tenth of how far costs are off."""
    costs.MACHINES[device] = machine
    total = 0.0
    for row in rows:
        predicted = costs_of(row, device)
        value = math.log(regret(row, predicted))
        layer = (16 if row["training"] else 4) * machine.call  # operations around the product
        off = [abs(math.log(1e-6 * row["us"][name] / (p + layer))) for name, p in predicted.items()]
        total += value + max(value - math.log(1.3), 0) + 0.1 * sum(off) / len(off)
    return total / len(rows)


def tell(name: str, values: list[float]) -> None:
    values = sorted(values)
    within = sum(v <= 1.3 for v in values) / len(values)
    print(f"{name}: median {values[len(values) // 2]:.2f}, within 1.3 {within:.3f}, worst {values[-1]:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--half", type=float, help="seconds of a multiply-add in bfloat16, for a CPU")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0, help="of the halves")
    arguments = parser.parse_args()
    found = [json.loads(file.read_text()) for file in arguments.files]
    rows = [
        row | {"threads": file["machine"]["threads"]}
        for file in found
        for row in file["rows"]
        if len(row["us"]) > 1
    ]
    source = random.Random(arguments.seed)
    source.shuffle(rows)
    half = len(rows) // 2
    looking, telling = rows[:half], rows[half:]
    device, fixed = arguments.device, {"fewest", "replay", "tf32", "lstm", "threads"}
    machine = costs.CPUS[found[0]["machine"]["machine"]] if device == "cpu" else costs.MACHINES[device]
    if arguments.half is not None:
        machine, fixed = machine._replace(half=arguments.half), fixed | {"half"}
    tell(f"{len(rows)} cases where there is a choice", regrets(rows, device, machine))
    tell("before, on the other half", regrets(telling, device, machine))
    best = loss(looking, device, machine)
    for step in range(arguments.steps):
        name = source.choice([f for f in machine._fields if f not in fixed])
        width = 1.5 if step < arguments.steps // 2 else 0.4
        other = machine._replace(**{name: getattr(machine, name) * math.exp(source.gauss(0, width))})
        value = loss(looking, device, other)
        if value < best:
            best, machine = value, other
    tell("after, on the half that was looked at", regrets(looking, device, machine))
    tell("after, on the other half", regrets(telling, device, machine))
    print(machine)
    worst = sorted(zip(regrets(rows, device, machine), rows, strict=True), key=lambda pair: -pair[0])
    for value, row in worst[:25]:
        kind = "training" if row["training"] else "inference"
        case = f"{row['structure']} n {row['n']} r {row['rank']} b {row['batch']} {row['dtype']} {kind}"
        print(f"{value:5.1f} {case} {row['us']}")


if __name__ == "__main__":
    main()
