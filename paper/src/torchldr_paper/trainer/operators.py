"""How the operators of LDR-TD layers stand: their entries, their growth, and what the port product needs.

    for row in operator_report(layer.matrix()): print(row["side"], row["growth"], row["oversampling"])

One row for A and one for C, of plain numbers, for a ledger or a table by epoch. `accuracies` and `movements`
sum up the runs of benchmarks/tridiagonal_learning.py, for what it prints and for the documentation.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from torchldr.functional.port import acceptance
from torchldr.matrices import LDRTridiagonal
from torchldr.operators import Tridiagonal

EIGENVALUES_UP_TO = 1024  # rows of an operator whose eigenvalues are computed

Runs = Sequence[Mapping[str, Any]]


@torch.no_grad()
def operator_report(matrix: LDRTridiagonal, *, spectrum: bool = True) -> list[dict[str, Any]]:
    """What the two operators of an LDR-TD matrix are like.

    Args:
        matrix: with the values that it has now.
        spectrum: whether to compute the spectral radius, of operators of up to 1024 rows.

    Returns:
        Rows for A and C of
            subdiagonal, diagonal, superdiagonal, corners: least and largest entry,
            row_sum: the largest absolute row sum,
            growth: the mean factor of |A^t v| a step, over k = min(m, n) steps,
            spectral_radius: where it was computed, else None,
            oversampling: that of the layer's port product, or None where it takes the stencil,
            bound, reason: of the layer's product (`acceptance.Verdict`).

    Waits for the device.
    """
    M = matrix.double()
    k = min(M.shape)
    operators = {"A": (*M._ring("A"), M.G), "C": (*M._ring("C"), M.H)}
    verdict = acceptance.judge(operators["A"], operators["C"])
    rows = []
    for side, operator in operators.items():
        lower, diagonal, upper, _ = operator
        corners = torch.stack((lower[0], upper[-1]))
        radius = None
        if spectrum and len(diagonal) <= EIGENVALUES_UP_TO:
            dense = Tridiagonal(lower[1:], diagonal, upper[:-1], corners).to_dense().cpu()
            radius = float(torch.linalg.eigvals(dense).abs().max())
        rows.append(
            {
                "side": side,
                "subdiagonal": _range(lower[1:]),
                "diagonal": _range(diagonal),
                "superdiagonal": _range(upper[:-1]),
                "corners": corners.tolist(),
                "row_sum": float((lower.abs() + diagonal.abs() + upper.abs()).max()),
                "growth": math.exp(acceptance.growth_rate(operator, k)),
                "spectral_radius": radius,
                "oversampling": verdict.ports.oversampling if verdict.ports else None,
                "bound": verdict.bound if math.isfinite(verdict.bound) else None,
                "reason": verdict.reason,
            }
        )
    return rows


def _range(x: torch.Tensor) -> list[float]:
    return [float(x.min()), float(x.max())]


class Accuracy(NamedTuple):
    """What a layer came to on a task, after the last epoch."""

    task: str
    kind: str
    parameters: int  # of the hidden layer
    tests: dict[float, list[float]]  # accuracies in percent by rate, one a seed
    rate: float  # the best in validation
    ms: float  # a step at that rate, the fastest run


def accuracies(runs: Runs) -> list[Accuracy]:
    """Tasks and layers in the order of their first runs; rates are compared by their mean validation."""
    found = []
    for task, kind in dict.fromkeys((run["task"], run["kind"]) for run in runs):
        by_rate: dict[float, list[Mapping[str, Any]]] = {}
        for run in runs:
            if (run["task"], run["kind"]) == (task, kind):
                by_rate.setdefault(run["rate"], []).append(run)
        rate, best = max(by_rate.items(), key=lambda item: statistics.mean(_last(item[1], "valid")))
        tests = {rate: [100 * test for test in _last(of, "test")] for rate, of in by_rate.items()}
        ms = 1e3 * min(run["seconds_a_step"] for run in best)
        found.append(Accuracy(task, kind, best[0]["hidden_parameters"], tests, rate, ms))
    return found


def _last(runs: Runs, key: str) -> list[float]:
    return [run["epochs"][-1][key] for run in runs]


class Movement(NamedTuple):
    """The operators of LDR-TD after an epoch: the worst of A and C and of all runs of a task."""

    task: str
    epoch: int
    growth: tuple[float, float]  # least and largest
    row_sum: float


def movements(runs: Runs) -> list[Movement]:
    """By task and epoch, from what `operator_report` said; epoch 0 is the start."""
    found = []
    for task in dict.fromkeys(run["task"] for run in runs if run["kind"] == "ldr_td"):
        of = [run["epochs"] for run in runs if (run["task"], run["kind"]) == (task, "ldr_td")]
        for epoch in range(max(map(len, of))):
            seen = [row for epochs in of if epoch < len(epochs) for row in epochs[epoch]["operators"]]
            growth = [row["growth"] for row in seen]
            row_sum = max(row["row_sum"] for row in seen)
            found.append(Movement(task, epoch, (min(growth), max(growth)), row_sum))
    return found
