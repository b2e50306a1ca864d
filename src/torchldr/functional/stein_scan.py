"""The recurrences of `scan` as differentiable functions of whole stacks of matrices.

First derivatives are the scan's own; derivatives of derivatives, forward mode and batches of gradients go
through the plain twins below. vmap only makes the stack larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from . import scan, stencil
from ._twin import plain_backward, plain_jvp
from .doubling import shift_weights, shifted_sum


def serves(*tensors: Tensor) -> bool:
    """Whether a GPU's kernels take these tensors. False under a tracer, whose tensors may have no memory."""
    traced = torch.compiler.is_compiling() or _get_current_dispatch_mode() is not None
    return not traced and scan.serves(*tensors)


def stein_matrix(a: Tensor, c: Tensor, E: Tensor) -> Tensor:
    """The matrices sum_{t < min(m, n)} A^t E (C^t)^T of two scaled cyclic shifts.

    Args:
        a: (A v)_i = a_i v_{i-1}, indices modulo m: A's corner, then its subdiagonal, shape (R, m).
        c: the same for C, shape (R, n).
        E: shape (R, m, n).

    Returns:
        Shape (R, m, n), differentiable in every argument. Right for every operator; no value is read.

    The same, by doubling and with plain autograd: `shifted_sum(E, a, c, min(m, n))`.
    """
    if a.shape[-1] > c.shape[-1]:
        return stein_matrix(c, a, E.mT).mT
    return _Stein.apply(a, c, E)


def stein_sum(a: Tensor, c: Tensor, E: Tensor) -> Tensor:
    """`stein_matrix` for (..., m), (..., n), (..., m, n): by kernels on a GPU and by doubling elsewhere."""
    if serves(a, c, E):
        leading = E.shape[:-2]
        a, c = (t.expand(*leading, t.shape[-1]).reshape(-1, t.shape[-1]) for t in (a, c))
        return stein_matrix(a, c, E.reshape(-1, *E.shape[-2:])).reshape(E.shape)
    return shifted_sum(E, a, c, min(E.shape[-2:]))


def column_scan(nodes: Tensor, E: Tensor) -> Tensor:
    """X_ij = nodes_j X_{i-1, j} + E_ij, down the columns.

    Args:
        nodes: shape (R, n).
        E: shape (R, m, n).

    Returns:
        Shape (R, m, n), differentiable in both.
    """
    return _Columns.apply(nodes, E)


def _plain_stein(a: Tensor, c: Tensor, E: Tensor) -> Tensor:
    return shifted_sum(E, a, c, a.shape[-1])


def _plain_columns(nodes: Tensor, E: Tensor) -> Tensor:
    rows = [E[:, 0]]
    for row in E.unbind(1)[1:]:
        rows.append(nodes * rows[-1] + row)
    return torch.stack(rows, 1)


def _stacked(
    function: type[torch.autograd.Function],
    info: Any,
    in_dims: Sequence[int | None],
    inputs: Sequence[Tensor],
) -> tuple[Tensor, int]:
    """The rule of vmap for a function of stacks: one stack of all."""
    size = info.batch_size
    whole = [
        t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(inputs, in_dims, strict=True)
    ]
    return function.apply(*(t.flatten(0, 1) for t in whole)).unflatten(0, whole[-1].shape[:2]), 0


class _Stein(torch.autograd.Function):
    @staticmethod
    def forward(a: Tensor, c: Tensor, E: Tensor) -> Tensor:
        return scan.stein_scan(a, c, E)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, D: Tensor) -> tuple[Tensor | None, ...]:
        a, c, E = ctx.saved_tensors
        if torch.is_grad_enabled() or not stencil.is_plain(D):
            return plain_backward(_plain_stein, (a, c, E), D)
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
            return tuple(scan.stein_scan_gradients(a, c, E, D))
        return None, None, scan.stein_scan_adjoint(a, c, D)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        return plain_jvp(_plain_stein, ctx.saved_tensors, tangents)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Tensor, int]:
        return _stacked(_Stein, info, in_dims, inputs)


class _Columns(torch.autograd.Function):
    @staticmethod
    def forward(nodes: Tensor, E: Tensor) -> Tensor:
        return scan.stein_scan(_shift(E), nodes, E, straight=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, D: Tensor) -> tuple[Tensor | None, ...]:
        nodes, E, X = ctx.saved_tensors
        if torch.is_grad_enabled() or not stencil.is_plain(D):
            return plain_backward(_plain_columns, (nodes, E), D)
        dE = scan.stein_scan_adjoint(_shift(D), nodes, D, straight=True)
        return (dE[:, 1:] * X[:, :-1]).sum(1) if ctx.needs_input_grad[0] else None, dE

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        return plain_jvp(_plain_columns, ctx.saved_tensors[:2], tangents)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Tensor, int]:
        return _stacked(_Columns, info, in_dims, inputs)


def _shift(E: Tensor) -> Tensor:
    """The shift of the rows of E, of no corner: (R, m)."""
    return shift_weights(E, E.shape[1], 0.0).expand(E.shape[:2])
