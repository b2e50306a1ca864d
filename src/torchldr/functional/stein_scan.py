"""The recurrences of `scan` as differentiable functions of whole stacks of matrices.

First derivatives are the scan's own; derivatives of derivatives, forward mode and batches of gradients go
through the plain twins below. vmap only makes the stack larger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ..kernels.cuda.scan import DTYPES
from . import scan, stencil
from ._twin import applied, plain_backward, plain_jvp
from .doubling import shifted_sum
from .scan import Operators, weights

# An operator: corner and subdiagonal; 1 or -1 and None for a shift.
Ring = tuple[Tensor | int, Tensor | None]


def serves(*tensors: Tensor) -> bool:
    """Whether a GPU's kernels take these tensors. False under a tracer, whose tensors may have no memory."""
    traced = torch.compiler.is_compiling() or _get_current_dispatch_mode() is not None
    return not traced and scan.serves(*tensors)


def stein_matrix(A: Ring, C: Ring, G: Tensor, H: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The matrices sum_{t < min(m, n)} A^t G^T H (C^t)^T of two scaled cyclic shifts.

    Args:
        A: (A v)_i = a_i v_{i-1}, indices modulo m: corner (..., 1) and subdiagonal (..., m - 1).
        C: the same for n.
        G: shape (..., r, m), of as many axes in front as A and C.
        H: shape (..., r, n).
        dtype: of the result, by default that of G. All is computed in float32 or wider.

    Returns:
        Shape (..., m, n), differentiable in every argument. Right for every operator; no value is read.

    The same, by doubling and with plain autograd: `shifted_sum`.
    """
    dtype = dtype or G.dtype
    if G.shape[-1] > H.shape[-1]:
        return stein_matrix(C, A, H, G, dtype).mT
    return applied(_Stein, G, H, *A, *C, dtype)


def stein_sum(A: Ring, C: Ring, G: Tensor, H: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """`stein_matrix`, by kernels on a GPU and by doubling elsewhere."""
    tensors = [t for t in (G, H, *A, *C) if isinstance(t, Tensor)]
    if not serves(*tensors):
        return _plain_stein(G, H, *A, *C, dtype or G.dtype)
    if dtype not in (None, *DTYPES):
        return stein_sum(A, C, G, H, torch.promote_types(G.dtype, torch.float32)).to(dtype)
    return stein_matrix(A, C, G, H, dtype)


def column_scan(nodes: Tensor, E: Tensor) -> Tensor:
    """X_ij = nodes_j X_{i-1, j} + E_ij, down the columns.

    Args:
        nodes: shape (R, n).
        E: shape (R, m, n).

    Returns:
        Shape (R, m, n), differentiable in both.
    """
    return _Columns.apply(nodes, E)


def _plain_stein(
    G: Tensor,
    H: Tensor,
    corner_A: Tensor | int,
    subdiagonal_A: Tensor | None,
    corner_C: Tensor | int,
    subdiagonal_C: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    wide = torch.promote_types(G.dtype, torch.float32)
    E = G.to(wide).mT @ H.to(wide)
    a, c = (
        weights(*of, E, size)
        for of, size in zip(((corner_A, subdiagonal_A), (corner_C, subdiagonal_C)), E.shape[-2:], strict=True)
    )
    return shifted_sum(E, a, c, min(E.shape[-2:])).to(dtype)


def _plain_columns(nodes: Tensor, E: Tensor) -> Tensor:
    rows = [E[:, 0]]
    for row in E.unbind(1)[1:]:
        rows.append(nodes * rows[-1] + row)
    return torch.stack(rows, 1)


def _in_front(info: Any, in_dims: Sequence[int | None], inputs: Sequence[Any]) -> list[Any]:
    """The inputs of a function that vmap maps, with its axis in front of every tensor."""
    return [
        t
        if not isinstance(t, Tensor)
        else t.expand(info.batch_size, *t.shape)
        if dim is None
        else t.movedim(dim, 0)
        for t, dim in zip(inputs, in_dims, strict=True)
    ]


def _as(t: Tensor, dtype: torch.dtype) -> Tensor:
    """`t.to(dtype)`, without asking torch where it has that dtype."""
    return t if t.dtype is dtype else t.to(dtype)


class _Stein(torch.autograd.Function):
    """Of G, H, the corner and subdiagonal of A, those of C, and the dtype of the result."""

    @staticmethod
    def forward(G: Tensor, H: Tensor, *rest: Any) -> Tensor:
        return scan.stein_scan(Operators(*rest[:4]), G, H, rest[4])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        tensors = [t for t in inputs if isinstance(t, Tensor)]
        ctx.filled = partial(_filled, [None if isinstance(t, Tensor) else (t,) for t in inputs])
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, D: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() or not stencil.is_plain(D):
            found, inputs = (
                iter(plain_backward(_twin(ctx), ctx.saved_tensors, D)),
                ctx.filled(ctx.saved_tensors),
            )
            return tuple(next(found) if isinstance(t, Tensor) else None for t in inputs)
        G, H, *rest = ctx.filled(ctx.saved_tensors)
        of, wanted, da, dc = Operators(*rest[:4]), ctx.needs_input_grad, None, None
        if any(wanted[2:6]):
            da, dc, dE = scan.stein_scan_gradients(of, G, H, D)
        else:
            dE = scan.stein_scan_adjoint(of, D, G.dtype)
        on = torch.is_autocast_enabled(D.device.type)
        with torch.autocast(D.device.type, enabled=False) if on else nullcontext():
            dG = _as(dE @ _as(H, D.dtype).mT, G.dtype).mT if wanted[0] else None
            dH = _as(_as(G, D.dtype) @ dE, H.dtype) if wanted[1] else None
        if da is None or dc is None:
            return dG, dH, None, None, None, None, None
        parts = (torch.split_with_sizes(d, (1, d.shape[-1] - 1), -1) for d in (da, dc))
        return dG, dH, *next(parts), *next(parts), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        inputs = ctx.filled(ctx.saved_tensors)
        wanted = [tangent for t, tangent in zip(inputs, tangents, strict=True) if isinstance(t, Tensor)]
        return plain_jvp(_twin(ctx), ctx.saved_tensors, wanted)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        return _Stein.apply(*_in_front(info, in_dims, inputs)), 0


vars(_Stein.forward)["__signature__"] = signature(_Stein.forward)  # torch asks for it at every call


def _filled(others: Sequence[tuple[Any] | None], tensors: Sequence[Tensor]) -> list[Any]:
    """All inputs: the tensors where there is no other."""
    left = iter(tensors)
    return [next(left) if other is None else other[0] for other in others]


def _twin(ctx: Any) -> Callable[..., Tensor]:
    """The plain form, as a function of the tensors alone."""
    filled = ctx.filled
    return lambda *tensors: _plain_stein(*filled(tensors))


class _Columns(torch.autograd.Function):
    @staticmethod
    def forward(nodes: Tensor, E: Tensor) -> Tensor:
        return scan.column_scan(nodes, E)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, D: Tensor) -> tuple[Tensor | None, ...]:
        nodes, E, X = ctx.saved_tensors
        if torch.is_grad_enabled() or not stencil.is_plain(D):
            return plain_backward(_plain_columns, (nodes, E), D)
        dE = scan.column_scan_adjoint(nodes, D)
        return (dE[:, 1:] * X[:, :-1]).sum(1) if ctx.needs_input_grad[0] else None, dE

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        return plain_jvp(_plain_columns, ctx.saved_tensors[:2], tangents)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Tensor, int]:
        nodes, E = _in_front(info, in_dims, inputs)
        return _Columns.apply(nodes.flatten(0, 1), E.flatten(0, 1)).unflatten(0, E.shape[:2]), 0
