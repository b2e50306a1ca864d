"""Products with a Cauchy matrix, as one operator.

    matrix    C[i, j] = 1 / (s_i - t_j),  shape (m, n)
    fields    (C x)_i is the field at s_i of charges x_j at t_j

Computed in tiles of TILE rows, which are used and discarded, in the backward pass too: O(m n)
work a vector, O(n) extra memory. The tests hold it to `cauchy_reference`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .operator import Operator

TILE = 256


def cauchy_reference(s: Tensor, t: Tensor) -> Tensor:
    """The matrix 1 / (s_i - t_j), shape (..., m, n)."""
    return 1 / (s.unsqueeze(-1) - t.unsqueeze(-2))


def cauchy_matmul(s: Tensor, t: Tensor, x: Tensor) -> Tensor:
    """Multiply vectors by the Cauchy matrix of s and t.

    Args:
        s: row nodes, shape (..., m).
        t: column nodes, shape (..., n); none may equal a row node.
        x: shape (..., b, n).

    Returns:
        Shape (..., b, m).

    The transposed product is `-cauchy_matmul(t, s, y)`. The same, slowly:
    `x @ cauchy_reference(s, t).T`.
    """
    return CAUCHY(s, t, x)


def _plain(s: Tensor, t: Tensor, x: Tensor) -> Tensor:
    return torch.cat([x @ cauchy_reference(tile, t).mT for tile in s.split(TILE, -1)], -1)


def _kernel(s: Tensor, t: Tensor, x: Tensor) -> Tensor:
    # Parts of one result: small tensors between the tiles would keep their memory from being used again.
    y = x.new_empty(*x.shape[:-1], s.shape[-1])
    for tile, part in zip(s.split(TILE, -1), y.split(TILE, -1), strict=True):
        part.copy_(x @ cauchy_reference(tile, t).mT)
    return y


def _gradient(
    u: Tensor, arguments: Sequence[Any], saved: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Tensor | None]:
    s, t, x = arguments
    dx = -_kernel(t, s, u) if wanted[2] else None
    if not any(wanted[:2]):
        return [None, None, dx]
    ds, dt = [], torch.zeros_like(t)
    for tile, part in zip(s.split(TILE, -1), u.split(TILE, -1), strict=True):
        weights = cauchy_reference(tile, t).square() * (part.mT @ x)
        ds.append(-weights.sum(-1))
        dt = dt + weights.sum(-2)
    return [torch.cat(ds, -1), dt, dx]


CAUCHY = Operator(
    "cauchy",
    "Tensor s, Tensor t, Tensor x",
    plain=_plain,
    kernel=_kernel,
    fake=lambda s, t, x: x.new_empty(*x.shape[:-1], s.shape[-1]),
    gradient=_gradient,
    serves=lambda s, t, x: True,
    samples=lambda: iter(
        [
            (torch.rand(4), torch.rand(3) + 2, torch.randn(2, 3)),
            (torch.rand(2, 4), torch.rand(2, 3) + 2, torch.randn(2, 5, 3)),
        ]
    ),
)
