"""Recurrences down the columns of matrices, as one operator: the dense matrix of Vandermonde-like layers.

    X[i, j] = nodes_j X[i-1, j] + E[i, j]

By a GPU's scan; on a CPU row by row, each in one operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from . import scan
from .operator import Operator


def column_scan(nodes: Tensor, E: Tensor) -> Tensor:
    """X with X_i = nodes X_{i-1} + E_i, row by row.

    Args:
        nodes: shape (..., n).
        E: shape (..., m, n).

    Returns:
        Shape (..., m, n), differentiable in both.
    """
    return COLUMNS(nodes, E)


def _plain(nodes: Tensor, E: Tensor) -> Tensor:
    rows = [E[..., 0, :]]
    for row in E.unbind(-2)[1:]:
        rows.append(nodes * rows[-1] + row)
    return torch.stack(rows, -2)


def _kernel(nodes: Tensor, E: Tensor) -> Tensor:
    if scan.serves(nodes, E):
        return scan.column_scan(*_flat(nodes, E)).view(E.shape)
    return _by_rows(nodes, E)


def _flat(nodes: Tensor, E: Tensor) -> tuple[Tensor, Tensor]:
    return nodes.reshape(-1, nodes.shape[-1]), E.reshape(-1, *E.shape[-2:])


def _by_rows(nodes: Tensor, E: Tensor, *, back: bool = False) -> Tensor:
    """The recurrence, or its adjoint from the last row to the first."""
    X = E.clone(memory_format=torch.contiguous_format)
    rows = X.unbind(-2)[:: -1 if back else 1]
    for before, here in pairwise(rows):
        here.addcmul_(nodes, before)
    return X


def _gradient(
    D: Tensor, arguments: Sequence[Any], saved: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Tensor | None]:
    nodes, (X,) = arguments[0], saved
    if scan.serves(nodes, D):
        dE = scan.column_scan_adjoint(*_flat(nodes, D)).view(D.shape)
    else:
        dE = _by_rows(nodes, D, back=True)
    return [(dE[..., 1:, :] * X[..., :-1, :]).sum(-2) if wanted[0] else None, dE]


COLUMNS = Operator(
    "columns",
    "Tensor nodes, Tensor E",
    plain=_plain,
    kernel=_kernel,
    fake=lambda nodes, E: torch.empty_like(E, memory_format=torch.contiguous_format),
    gradient=_gradient,
    serves=lambda nodes, E: True,
    samples=lambda: iter([(torch.rand(4), torch.randn(3, 4)), (torch.rand(2, 3), torch.randn(2, 1, 3))]),
)
