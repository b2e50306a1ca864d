"""The operators of an LDR-TD matrix in numbers: entries, row sums, growth, spectral radius."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...functional.tridiagonal import largest_row_sum
from ...operators import Tridiagonal

EIGENVALUES_UP_TO = 1024  # rows of an operator whose eigenvalues are computed


@torch.no_grad()
def operator_report(matrix: Any, *, spectrum: bool = True) -> list[dict[str, Any]]:
    """See `LDRTridiagonal.operator_report`."""
    M = matrix.double()
    rows = []
    for side, operator in zip("AC", M.both_operators(), strict=True):
        lower, diagonal, upper, V = operator
        A, radius = Tridiagonal.from_ring(lower, diagonal, upper), None
        if spectrum and len(diagonal) <= EIGENVALUES_UP_TO:
            radius = float(torch.linalg.eigvals(A.to_dense().cpu()).abs().max())
        rows.append(
            {
                "side": side,
                "subdiagonal": _range(A.sub),
                "diagonal": _range(A.diag),
                "superdiagonal": _range(A.super),
                "corners": A.corners.tolist(),
                "row_sum": float(largest_row_sum(lower, diagonal, upper)),
                "growth": math.exp(growth_rate(lower, diagonal, upper, V, min(M.shape))),
                "spectral_radius": radius,
            }
        )
    return rows


def growth_rate(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, k: int) -> float:
    """The slope of log |A^t V| over t < k, by least squares; steps after V has become zero do not count.

    V is divided by its norm at each step, so that no growth leaves the range of the dtype.
    """
    sizes = []
    for _ in range(k):
        sizes.append(V.norm())
        V = V / sizes[-1].clamp_min(torch.finfo(V.dtype).tiny)
        V = lower * V.roll(1, -1) + diagonal * V + upper * V.roll(-1, -1)
    logs = torch.stack(sizes).log().cumsum(0)
    logs = logs[logs.isfinite()]
    if len(logs) < 2:
        return 0.0
    steps = torch.arange(len(logs), dtype=logs.dtype, device=logs.device)
    steps = steps - steps.mean()
    return float((steps * logs).sum() / steps.square().sum())


def _range(x: Tensor) -> list[float]:
    return [float(x.min()), float(x.max())]
