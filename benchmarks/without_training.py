"""What compress_minilm.py and compress_smollm2.py share: a model compressed in turn, beside whitened SVD."""

from __future__ import annotations

import argparse
import copy
import json
import platform
import time
from collections.abc import Callable, Collection, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn
from whitened_svd import whiten_

import torchldr


def options(description: str, budgets: list[float], alone: list[str], out: str) -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=plain)
    parser.add_argument("model", type=Path)
    parser.add_argument("--budgets", type=float, nargs="+", default=budgets)
    parser.add_argument("--time-limit", type=float, help="seconds; none by default")
    parser.add_argument("--alone", nargs="*", default=alone, help="single classes")
    parser.add_argument("--out", type=Path, default=Path(out))
    return parser


def compare(
    original: nn.Module,
    judge: Callable[[nn.Module], dict[str, Any]],
    loaders: Mapping[str, Any],
    asked: argparse.Namespace,
    left: Collection[str] = (),
) -> None:
    """Rows for every text and budget: the default call, single classes, whitened SVD of all but `left`."""
    rows: list[dict[str, Any]] = []
    machine = {"machine": platform.machine(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    asked.out.parent.mkdir(parents=True, exist_ok=True)

    def add(model: nn.Module, method: str, budget: float, **more: Any) -> None:
        rows.append({"method": method, "budget": budget, **judge(model), **more})
        print(rows[-1], flush=True)
        found = {**machine, "time_limit": asked.time_limit, "rows": rows}
        asked.out.write_text(json.dumps(found, indent=2) + "\n")

    add(original, "dense", 1.0)
    for (text, loader), budget in product(loaders.items(), asked.budgets):
        for name in (None, *asked.alone):
            model, wall, work = copy.deepcopy(original), time.perf_counter(), time.process_time()
            given = {} if name is None else {"structures": [name]}
            report = torchldr.compress_(model, budget, loader=loader, time_limit=asked.time_limit, **given)
            wall, work = time.perf_counter() - wall, time.process_time() - work
            share = round(report.parameters_after / report.parameters_before, 4)
            more = {"text": text, "share": share, "distance": report.distance, "notes": list(report.notes)}
            more |= {"seconds": round(wall, 1), "cpu": round(work, 1)}
            add(model, "compress_" if name is None else f"compress_, {name} alone", budget, **more)
        model = copy.deepcopy(original)
        whiten_(model, budget, loader, left)
        add(model, "uniform whitened SVD", budget, text=text)
