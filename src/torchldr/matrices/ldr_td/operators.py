"""How the operators of an LDR-TD matrix stand: entries, growth, and what the port product needs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...functional.port import acceptance
from ...functional.tridiagonal import largest_row_sum
from ...operators import Tridiagonal

EIGENVALUES_UP_TO = 1024  # rows of an operator whose eigenvalues are computed


@torch.no_grad()
def operator_report(matrix: Any, *, spectrum: bool = True) -> list[dict[str, Any]]:
    """See `LDRTridiagonal.operator_report`."""
    M = matrix.double()
    both = M.both_operators()
    verdict = acceptance.judge(*both)
    rows = []
    for side, operator in zip("AC", both, strict=True):
        lower, diagonal, upper, _ = operator
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
                "growth": math.exp(acceptance.growth_rate(operator, min(M.shape))),
                "spectral_radius": radius,
                "oversampling": verdict.ports.oversampling if verdict.ports else None,
                "bound": verdict.bound if math.isfinite(verdict.bound) else None,
                "reason": verdict.reason,
            }
        )
    return rows


def _range(x: Tensor) -> list[float]:
    return [float(x.min()), float(x.max())]
