"""Which learning rate is best for every class, and how far it is from a dense layer's.

    python benchmarks/learning_rates.py [--data FILE.npz] [--device cuda] [--processes 8]
                                        [--out results/bench/learning_rates.json] [--quick]

CIFAR-10 in grey, one hidden layer of 1024 features to `width`, ReLU, ten classes; Adam with
`parameter_groups(model, rate)`, as users are told, a cosine schedule and batches of 256. Rates are a ladder
of factor 3. The best rate is that of the best accuracy on the test images, the mean over seeds. FILE.npz has
`train_x`, `train_y`, `test_x`, `test_y`, images as rows of 1024 bytes; without it the data are random
clusters, for a quick look.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchldr import StructuredLinear, structures
from torchldr.compress import parameter_groups
from torchldr.timing import machine

RATES = [1e-4 * 3**k for k in range(7)]
WIDTHS = 64, 256, 1024
EPOCHS, BATCH = 5, 256


@cache
def data(file: str | None, device: str) -> list[Tensor]:
    if file is None:
        g = torch.Generator().manual_seed(0)
        labels = torch.randint(10, (6000,), generator=g)
        images = torch.randn(10, 1024, generator=g)[labels] + 4 * torch.randn(6000, 1024, generator=g)
        parts = [images[:5000], labels[:5000], images[5000:], labels[5000:]]
    else:
        with np.load(file) as found:
            arrays = [found[name] for name in ("train_x", "train_y", "test_x", "test_y")]
        parts = [torch.from_numpy(a).float() if i % 2 == 0 else torch.from_numpy(a).long()
                 for i, a in enumerate(arrays)]  # fmt: skip
    mean, deviation = parts[0].mean(), parts[0].std()
    parts[0], parts[2] = (parts[0] - mean) / deviation, (parts[2] - mean) / deviation
    return [part.to(device) for part in parts]


def accuracy(case: dict[str, Any], file: str | None, device: str) -> float:
    """Of one training."""
    torch.set_num_threads(1)
    x, y, test_x, test_y = data(file, device)
    torch.manual_seed(case["seed"])
    rank = {"rank": case["rank"]} if case["rank"] else {}
    hidden = StructuredLinear(1024, case["width"], structure=case["structure"], **rank)
    model = nn.Sequential(hidden, nn.ReLU(), nn.Linear(case["width"], 10)).to(device)
    optimizer = torch.optim.Adam(parameter_groups(model, case["rate"]))
    steps = EPOCHS * (len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x), device=device)[: len(x) // BATCH * BATCH].split(BATCH):
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        return float((model(test_x).argmax(1) == test_y).double().mean())


def best(rows: list[dict[str, Any]], structure: str, width: int) -> tuple[float, float]:
    """The best rate, and its mean accuracy."""
    found = {
        rate: np.mean([r["accuracy"] for r in rows
                       if (r["structure"], r["width"], r["rate"]) == (structure, width, rate)])
        for rate in RATES
    }  # fmt: skip
    rate = max(found, key=lambda rate: found[rate])
    return rate, float(found[rate])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    classes = structures()
    names, widths = (("dense", "toeplitz_like"), (64,)) if arguments.quick else (list(classes), WIDTHS)
    cases = [
        {"structure": name, "rank": 4 if classes[name].ranked else None}
        | {"width": width, "rate": rate, "seed": s}
        for name, width, rate, s in product(names, widths, RATES, arguments.seeds)
    ]  # fmt: skip
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        many = [pool.submit(accuracy, case, arguments.data, arguments.device) for case in cases]
        for case, one in zip(cases, many, strict=True):
            rows.append({**case, "accuracy": one.result()})
            if arguments.out is not None and len(rows) % len(RATES) == 0:
                arguments.out.parent.mkdir(parents=True, exist_ok=True)
                found = {"machine": machine(), "data": arguments.data and "CIFAR-10, grey", "rows": rows}
                arguments.out.write_text(json.dumps(found, indent=1) + "\n")
            if len(rows) % (len(RATES) * len(arguments.seeds)) == 0:
                rate, value = best(rows, case["structure"], case["width"])
                print(f"{case['structure']:18} width {case['width']:5}   best rate {rate:.1e}   {value:.3f}")


if __name__ == "__main__":
    main()
