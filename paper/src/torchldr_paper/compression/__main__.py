"""The command: `python -m torchldr_paper.compression NAME ..`."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from torchldr.cli import say

from ..cli.options import HERE
from ..data import DatasetNotFoundError
from ..executors import RayExecutor
from ..ledger.ledger import default_results
from .images import IMAGE_TABLES, ImageTable
from .language import LANGUAGE_TABLES, LanguageTable
from .loop import run_table
from .tables import Rows, best, render

TABLES: Mapping[str, ImageTable | LanguageTable] = {**IMAGE_TABLES, **LANGUAGE_TABLES}
# Guesses for one H200, from its bandwidth: where rows are known, their own times are told instead.
PLANNED_SECONDS = {"images": 30.0, "lstm": 60.0, "gpt": 100.0}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run tables one after the other; 0 when all is done, 1 when time or data did not suffice."""
    parser = argparse.ArgumentParser(
        prog="python -m torchldr_paper.compression",
        description="Compress trained models by every class, before and after fine-tuning.",
    )
    parser.add_argument("names", nargs="+", choices=[*TABLES, "all"], metavar="NAME", help=", ".join(TABLES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--results", type=Path, default=None, help="folder of compression.jsonl")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--quick", action="store_true", help="a small version, to see that it runs")
    parser.add_argument("--max-seconds", type=float, default=math.inf, help="begin nothing new after these")
    parser.add_argument("--thorough", action="store_true", help="LDR-TD of large layers on a CPU too")
    parser.add_argument("--show", action="store_true", help="print what is there and run nothing")
    parser.add_argument("--ray", nargs="?", const=HERE, metavar="ADDRESS", help="train on a Ray cluster")
    parser.add_argument("--cpus", type=float, default=1.0, help="with --ray: cores of a task")
    parser.add_argument("--gpus", type=float, default=None, help="with --ray: GPUs of a task")
    parser.add_argument("--retries", type=int, default=3, help="with --ray: of tasks whose worker died")
    chosen = parser.parse_args(arguments)
    names = tuple(TABLES) if "all" in chosen.names else tuple(dict.fromkeys(chosen.names))
    rows = Rows(default_results() if chosen.results is None else chosen.results)
    for problem in rows.problems:
        say(problem)
    complete, executor = True, None
    deadline = time.monotonic() + chosen.max_seconds
    if not chosen.show:
        # What the tables took, or are planned to take where nothing is known.
        known = {name: sum(row["seconds"] for row in rows.of(name, quick=chosen.quick)) for name in names}
        planned = sum(known[name] or PLANNED_SECONDS.get(name, PLANNED_SECONDS["images"]) for name in names)
        say(f"estimate for one H200: {planned:.0f} s, less what is done")
        if chosen.ray is not None:
            address = None if chosen.ray == HERE else chosen.ray
            gpus = 0.0 if chosen.device == "cpu" else chosen.gpus
            try:
                executor = RayExecutor(address, cpus=chosen.cpus, gpus=gpus, retries=chosen.retries)
            except ImportError as error:
                parser.error(f"--ray: {error}")
            except ConnectionError as error:
                say(str(error))
                return 1
    try:
        for name in () if chosen.show else names:
            if time.monotonic() > deadline:
                say(f"{name}: no time left")
                complete = False
                continue
            try:
                table = TABLES[name].quick() if chosen.quick else TABLES[name]
                where = {"device": torch.device(chosen.device), "data_dir": chosen.data_dir, "say": say}
                limits = {"deadline": deadline, "thorough": chosen.thorough, "executor": executor}
                complete &= run_table(table, rows, **where, **limits)
            except DatasetNotFoundError as error:
                say(str(error))
                complete = False
    finally:
        if executor is not None:
            executor.shutdown(cancel_futures=True)
    for name in names:
        found = rows.of(name, quick=chosen.quick)
        print(f"{name}\n\n{render(found)}")
        top = best(found, 10, structured=True)
        if top is not None:
            print(f"best structured class at 10 times: {top['method']}, {top['after'] - top['dense']:+.2f}\n")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
