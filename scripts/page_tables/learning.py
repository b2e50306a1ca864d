"""What the runs of benchmarks/tridiagonal_learning.py say: accuracies, and how operators move."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torchldr_paper.tables.markdown import markdown

Runs = Sequence[Mapping[str, Any]]


def learned(runs: Runs) -> str:
    """Test accuracies by task, layer and rate, the rate that is best on average in validation in bold.

    After the last epoch; the time a step is that of the fastest run at that rate.
    """
    rates = sorted({run["rate"] for run in runs}, reverse=True)
    body = []
    for task, kind in dict.fromkeys((run["task"], run["kind"]) for run in runs):
        by_rate: dict[float, list[Mapping[str, Any]]] = {}
        for run in runs:
            if (run["task"], run["kind"]) == (task, kind):
                by_rate.setdefault(run["rate"], []).append(run)
        best = max(by_rate, key=lambda rate: _mean(by_rate[rate], "valid"))
        cells = [f"{100 * _mean(by_rate[rate], 'test'):.1f}" if rate in by_rate else "-" for rate in rates]
        cells[rates.index(best)] = f"**{cells[rates.index(best)]}**"
        ms = 1e3 * min(run["seconds_a_step"] for run in by_rate[best])
        layer = kind if " " in kind else f"`{kind}`"
        body.append([task, layer, f"{by_rate[best][0]['hidden_parameters']:,}", *cells, f"{ms:.1f}"])
    header = ["task", "hidden layer", "its parameters", *(f"rate {rate:g}" for rate in rates), "ms a step"]
    return f"{markdown(header, body)}\n{_protocol(runs)}\n"


def _mean(runs: Runs, key: str) -> float:
    return statistics.mean(run["epochs"][-1][key] for run in runs)


def _protocol(runs: Runs) -> str:
    """How many runs there are and how long they trained, as the runs themselves have it."""
    seeds = Counter((run["task"], run["kind"], run["rate"]) for run in runs).values()
    epochs, batches = {len(run["epochs"]) - 1 for run in runs}, {run["batch"] for run in runs}
    parts = _counted(seeds, "seed"), _counted(epochs, "epoch"), _counted(batches, "example")
    return f"{len(runs)} runs of {parts[0]} and {parts[1]}, {parts[2]} a step."


def _counted(values: Collection[int], what: str) -> str:
    least, most = min(values), max(values)
    return f"{least if least == most else f'{least} to {most}'} {what}{'s' * (most > 1)}"
