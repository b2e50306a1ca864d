"""Products with a Cauchy matrix.

    matrix    C[i, j] = 1 / (s_i - t_j),  shape (m, n)
    fields    (C x)_i is the field at s_i of charges x_j at t_j

Computed in tiles of TILE rows that are made, used and forgotten, in the backward pass too: O(m n)
work a vector, O(n) extra memory. The tests hold it to `cauchy_reference`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._twin import applied, plain_backward, plain_jvp
from .stencil import is_plain

TILE = 256


def cauchy_reference(s: Tensor, t: Tensor) -> Tensor:
    """The matrix 1 / (s_i - t_j), shape (m, n)."""
    return 1 / (s.unsqueeze(-1) - t)


def cauchy_matmul(s: Tensor, t: Tensor, x: Tensor) -> Tensor:
    """Multiply vectors by the Cauchy matrix of s and t.

    Args:
        s: row nodes, shape (m,).
        t: column nodes, shape (n,); none may equal a row node.
        x: shape (b, n).

    Returns:
        Shape (b, m).

    The transposed product is `-cauchy_matmul(t, s, y)`. The same, slowly:
    `x @ cauchy_reference(s, t).T`.
    """
    if torch.compiler.is_compiling():
        return _plain(s, t, x)
    return applied(_Tiled, s, t, x)


def _plain(s: Tensor, t: Tensor, x: Tensor) -> Tensor:
    rows = [x @ cauchy_reference(tile, t).mT for tile in s.split(TILE)]
    return torch.cat(rows, -1)


class _Tiled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(s: Tensor, t: Tensor, x: Tensor) -> Tensor:
        if not all(map(is_plain, (s, t, x))):
            return _plain(s, t, x)
        # Parts of one result: small tensors between the tiles would keep their memory from being used again.
        y = x.new_empty(x.shape[0], s.shape[0])
        for tile, part in zip(s.split(TILE), y.split(TILE, -1), strict=True):
            part.copy_(x @ cauchy_reference(tile, t).mT)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, y: Tensor) -> tuple[Tensor | None, ...]:
        s, t, x = ctx.saved_tensors
        if torch.is_grad_enabled():
            return plain_backward(_plain, (s, t, x), y)
        dx = -_plain(t, s, y) if ctx.needs_input_grad[2] else None
        if not (ctx.needs_input_grad[0] or ctx.needs_input_grad[1]):
            return None, None, dx
        ds, dt = [], torch.zeros_like(t)
        for tile, part in zip(s.split(TILE), y.split(TILE, -1), strict=True):
            weights = cauchy_reference(tile, t).square() * (part.mT @ x)
            ds.append(-weights.sum(1))
            dt = dt + weights.sum(0)
        return torch.cat(ds), dt, dx

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        return plain_jvp(_plain, ctx.saved_tensors, tangents)
