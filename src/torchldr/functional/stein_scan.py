"""The recurrences of `scan` as differentiable functions of whole stacks of matrices.

First derivatives are the scan's own; derivatives of derivatives, forward mode and batches of gradients go
through the plain twins below. vmap only makes the stack larger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..kernels.cuda.numbers import NAMES
from . import row_scan, scan, stencil
from ._twin import applied, converted, plain_backward, plain_jvp
from .doubling import shifted_sum
from .row_scan import weights
from .scan import Operators

# An operator: corner and subdiagonal; 1 or -1 and None for a shift.
Ring = tuple[Tensor | int, Tensor | None]


def serves(*tensors: Tensor) -> bool:
    """Whether a GPU's kernels take these tensors. False under a tracer, whose tensors may have no memory."""
    return not _is_traced() and scan.serves(*tensors)


def _way(*tensors: Tensor) -> Any:
    """The module whose scan takes these tensors: kernels on a GPU, compiled loops on a CPU, or None."""
    return scan if scan.serves(*tensors) else row_scan if row_scan.serves(*tensors) else None


def _is_traced() -> bool:
    return torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0


def stein_matrix(A: Ring, C: Ring, G: Tensor, H: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The matrices sum_{t < min(m, n)} A^t G^T H (C^t)^T of two scaled cyclic shifts.

    Args:
        A: (A v)_i = a_i v_{i-1}, indices modulo m: corner (..., 1) and subdiagonal (..., m - 1).
        C: the same for n.
        G: shape (..., r, m), of as many axes in front as A and C.
        H: shape (..., r, n).
        dtype: of the result, by default that of G. All is computed in float32 or wider.

    Returns:
        Shape (..., m, n), differentiable in every argument. Right for every operator; no value is read. For
        tensors that a scan takes.

    The same, by doubling and with plain autograd: `shifted_sum`.
    """
    return _scanned(_way(G), A, C, G, H, dtype or G.dtype)


def _scanned(way: Any, A: Ring, C: Ring, G: Tensor, H: Tensor, dtype: torch.dtype) -> Tensor:
    if G.shape[-1] > H.shape[-1]:
        return _scanned(way, C, A, H, G, dtype).mT
    made: Tensor = applied(_Stein, G, H, *A, *C, dtype, way)
    return made


def stein_sum(A: Ring, C: Ring, G: Tensor, H: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """`stein_matrix` by a scan, or by doubling where none takes these tensors."""
    dtype = dtype or G.dtype
    found = stein_by_scan(A, C, G, H, dtype)
    return _plain_stein(G, H, *A, *C, dtype) if found is None else found


def stein_by_scan(A: Ring, C: Ring, G: Tensor, H: Tensor, dtype: torch.dtype) -> Tensor | None:
    """`stein_matrix` where a scan takes these tensors, else None."""
    operators = () if A[1] is None else (*A, *C)
    if _is_traced() or (way := _way(G, H, *operators)) is None:
        return None
    if dtype not in NAMES:
        return _scanned(way, A, C, G, H, torch.promote_types(G.dtype, torch.float32)).to(dtype)
    return _scanned(way, A, C, G, H, dtype)


def scans(nodes: Tensor, E: Tensor) -> bool:
    """Whether `column_scan` takes these tensors: not under a tracer, which would see a step for each row."""
    if E.device.type != "cpu":
        return serves(nodes, E)
    return not _is_traced() and torch._C._get_tracing_state() is None


def column_scan(nodes: Tensor, E: Tensor) -> Tensor:
    """X_ij = nodes_j X_{i-1, j} + E_ij, down the columns: by kernels on a GPU, by rows on a CPU.

    Args:
        nodes: shape (R, n).
        E: shape (R, m, n).

    Returns:
        Shape (R, m, n), differentiable in both.
    """
    return applied(_Columns, nodes, E)


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
    m, n = E.shape[-2:]
    a, c = weights(corner_A, subdiagonal_A, E, m), weights(corner_C, subdiagonal_C, E, n)
    return shifted_sum(E, a, c, min(m, n)).to(dtype)


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


class _Stein(torch.autograd.Function):
    """Of G, H, the corner and subdiagonal of A, those of C, the dtype of the result, and what scans."""

    @staticmethod
    def forward(G: Tensor, H: Tensor, *rest: Any) -> Tensor:
        *operators, dtype, way = rest
        made: Tensor = way.stein_scan(Operators(*operators), G, H, dtype)
        return made

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        tensors = 2 if inputs[3] is None else 6  # the others are numbers, None, a dtype and a module
        ctx.others = inputs[tensors:]
        ctx.save_for_backward(*inputs[:tensors])
        ctx.save_for_forward(*inputs[:tensors])

    @staticmethod
    def backward(ctx: Any, D: Tensor) -> tuple[Tensor | None, ...]:
        inputs: tuple[Any, ...] = *ctx.saved_tensors, *ctx.others
        G, H, of, way, wanted = *inputs[:2], Operators(*inputs[2:6]), inputs[-1], ctx.needs_input_grad
        graded = True in wanted[2:6]
        if torch.is_grad_enabled() or not stencil.is_plain(D) or not way.goes_back(G, graded):
            return *plain_backward(_twin(ctx), ctx.saved_tensors, D), *[None for _ in ctx.others]
        found: Sequence[Any] = (None,) * 4
        if graded:
            found, dE = way.stein_scan_gradients(of, G, H, D)
        else:
            dE = way.stein_scan_adjoint(of, D, G.dtype)
        device, dtype = D.device.type, D.dtype
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            dG = converted(converted(H, dtype) @ dE.mT, G.dtype) if wanted[0] else None
            dH = converted(converted(G, dtype) @ dE, H.dtype) if wanted[1] else None
        return dG, dH, *found, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return plain_jvp(_twin(ctx), ctx.saved_tensors, tangents[: len(ctx.saved_tensors)])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        return _Stein.apply(*_in_front(info, in_dims, inputs)), 0


def _twin(ctx: Any) -> Callable[..., Tensor]:
    """The plain form, as a function of the tensors alone."""
    *others, _ = ctx.others
    return lambda *tensors: _plain_stein(*tensors, *others)


def _by_rows(nodes: Tensor, E: Tensor, *, back: bool = False) -> Tensor:
    """`column_scan`, or its adjoint from the last row to the first, by one operation for each row."""
    X = E.clone(memory_format=torch.contiguous_format)
    rows = X.unbind(1)[:: -1 if back else 1]
    for before, here in pairwise(rows):
        here.addcmul_(nodes, before)
    return X


class _Columns(torch.autograd.Function):
    @staticmethod
    def forward(nodes: Tensor, E: Tensor) -> Tensor:
        return scan.column_scan(nodes, E) if scan.serves(nodes, E) else _by_rows(nodes, E)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, D: Tensor) -> tuple[Tensor | None, ...]:
        nodes, E, X = ctx.saved_tensors
        if torch.is_grad_enabled() or not stencil.is_plain(D):
            return plain_backward(_plain_columns, (nodes, E), D)
        kernels = scan.serves(nodes, D)
        dE = scan.column_scan_adjoint(nodes, D) if kernels else _by_rows(nodes, D, back=True)
        return (dE[:, 1:] * X[:, :-1]).sum(1) if ctx.needs_input_grad[0] else None, dE

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        return plain_jvp(_plain_columns, ctx.saved_tensors[:2], tangents)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Tensor, int]:
        nodes, E = _in_front(info, in_dims, inputs)
        return _Columns.apply(nodes.flatten(0, 1), E.flatten(0, 1)).unflatten(0, E.shape[:2]), 0
