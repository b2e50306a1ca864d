"""Fit the numbers of `torchldr.core.costs` to measured routes: those that make the choices best.

    python benchmarks/fit_costs.py results/bench/routes_cpu.json [more.json] [--device cpu] [--steps 400]

The rows of `benchmarks/routes.py` say how long every route took. A choice costs the time of the route that is
chosen over that of the best one; this looks for the constants with the smallest mean logarithm of that, by
changing one of them at a time, and prints them. Half of the cases are for looking, the other half for
telling.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from pathlib import Path
from typing import Any

import torch

import torchldr
from torchldr.core import costs
from torchldr.core.routes import Call, Sizes


def regrets(rows: list[dict[str, Any]], device: str, machine: costs.Machine) -> list[float]:
    costs.MACHINES[device] = machine
    found = []
    for row in rows:
        cls = torchldr.get_structure(row["structure"])
        options = cls.check_options({})
        sizes = Sizes(torch.Size((row["n"], row["n"])), row["rank"] if cls.ranked else None, options)
        dtype, training = getattr(torch, row["dtype"]), row["training"]
        call = Call(row["batch"], device, dtype, needs_grad=training, kept=not training).sized
        own = [route for route in cls.ROUTES if route.name in row["us"]]
        chosen = min(own, key=lambda route: route.seconds(sizes, call))
        found.append(row["us"][chosen.name] / min(row["us"].values()))
    return found


def loss(rows: list[dict[str, Any]], device: str, machine: costs.Machine) -> float:
    """The mean logarithm, and what lies beyond 1.3 once more."""
    values = [math.log(r) for r in regrets(rows, device, machine)]
    return sum(v + max(v - math.log(1.3), 0) for v in values) / len(values)


def tell(name: str, values: list[float]) -> None:
    values = sorted(values)
    within = sum(v <= 1.3 for v in values) / len(values)
    print(f"{name}: median {values[len(values) // 2]:.2f}, within 1.3 {within:.3f}, worst {values[-1]:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    rows = [row for file in arguments.files for row in json.loads(file.read_text())["rows"] if row["us"]]
    rows = [row for row in rows if len(row["us"]) > 1]
    source = random.Random(0)
    source.shuffle(rows)
    half = len(rows) // 2
    looking, telling = rows[:half], rows[half:]
    device, machine = arguments.device, costs.MACHINES[arguments.device]
    tell("before, on the other half", regrets(telling, device, machine))
    best = loss(looking, device, machine)
    for step in range(arguments.steps):
        name = source.choice([f for f in machine._fields if f != "fewest"])
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
