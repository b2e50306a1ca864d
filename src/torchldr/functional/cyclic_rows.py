"""Products with a grid of circulant blocks by the FFTs of torch, some rows at a time, with their gradients.

    y_p = sum_q columns[p, q] (*) x_q                            (*) the cyclic convolution of length s
    dx_q = sum_p columns[p, q] (*)^T dy_p,    dcolumns[p, q] = x_q (*)^T dy_p

Autograd would keep what FFTs of all rows give, in float32, and go back through a real FFT by a complex one.
Here x is kept, as it came, and the spectra of the columns; a step takes five real FFTs of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.fft import irfft, rfft
from torch.nn.functional import pad

from . import stencil
from ._twin import converted, plain_backward
from .fft import leading

ENTRIES = 1 << 24  # of rows that are transformed together


def product(columns: Tensor, x: Tensor, m: int, dtype: torch.dtype) -> Tensor:
    """M x for rows of x, differentiable in both.

    Args:
        columns: the first column of every block, (p, q, s), or of one block, (s,); s even.
        x: vectors (b, n), n at most q s.
        m: at most p s.
        dtype: of the result. FFTs are in float32 or wider.

    Returns:
        Shape (b, m).
    """
    if not torch.is_grad_enabled() or not (columns.requires_grad or x.requires_grad):
        return _product(columns, _spectra(columns), x, m, dtype)
    y: Tensor = super(Function, _Product).apply(columns, x, m, dtype)
    return y  # what torch's own `apply` does besides is for transformations


def _plain(columns: Tensor, x: Tensor, m: int, dtype: torch.dtype) -> Tensor:
    size, S = columns.shape[-1], _spectra(columns)
    return _back(_between(_transformed(x, S, size), S), size)[:, :m].to(dtype)


def _wide(t: Tensor) -> Tensor:
    return t if t.dtype.itemsize >= 4 else t.float()


def _spectra(columns: Tensor) -> Tensor:
    """Of one block (f,), of a grid (f, q, p); divided by the size, which `_back` leaves out."""
    S = rfft(_wide(columns), norm="forward")
    return S if S.ndim == 1 else S.permute(2, 1, 0)


def _transformed(x: Tensor, S: Tensor, size: int) -> Tensor:
    """The spectra of rows (b, n): (b, f) for one block, (b, q, f) for a grid."""
    x = _wide(x)
    if S.ndim == 1:
        return rfft(x, size)
    short = -x.shape[-1] % size
    return rfft((pad(x, (0, short)) if short else x).unflatten(-1, (-1, size)))


def _between(X: Tensor, S: Tensor) -> Tensor:
    """(b, f) times (f,), or (b, q, f) by matrices (f, q, p) to (b, p, f)."""
    return X * S if S.ndim == 1 else torch.bmm(X.permute(2, 0, 1), S).permute(1, 2, 0)


def _back(spectra: Tensor, size: int) -> Tensor:
    """Rows with these spectra, times the size: one pass over all rows less."""
    y = irfft(spectra, size, norm="forward")
    return y if y.ndim == 2 else y.flatten(-2)


def _by_parts(
    run: Callable[..., Tensor], columns: Tensor, count: int, dtype: torch.dtype, *rows: Tensor
) -> Tensor:
    """The first entries of what `run` gives for some rows at a time, one below the other, (b, count)."""
    b, width = rows[0].shape[0], max(columns.shape[:-1], default=1) * columns.shape[-1]
    step = max(1, ENTRIES // width)
    if 0 < b <= step:  # as they are: a view takes as long to make as a kernel to start
        y = run(*rows)
        return leading(y, count) if y.dtype is dtype else y[:, :count].to(dtype)
    y = rows[0].new_empty(b, count, dtype=dtype)
    for first in range(0, b, step):
        y[first : first + step] = run(*(t[first : first + step] for t in rows))[:, :count]
    return y


def _product(columns: Tensor, S: Tensor, x: Tensor, m: int, dtype: torch.dtype) -> Tensor:
    size = columns.shape[-1]
    run = lambda some: _back(_between(_transformed(some, S, size), S), size)
    return _by_parts(run, columns, m, dtype, x)


class _Product(Function):
    @staticmethod
    def forward(ctx: Any, columns: Tensor, x: Tensor, *others: Any) -> Tensor:
        S = _spectra(columns)
        ctx.save_for_backward(columns, x, S)
        ctx.others = others
        return _product(columns, S, x, *others)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        columns, x, S = ctx.saved_tensors
        if torch.is_grad_enabled() or not stencil.is_plain(dy):
            twin = lambda columns, x: _plain(columns, x, *ctx.others)
            return *plain_backward(twin, (columns, x), dy), None, None
        device, wanted = dy.device.type, ctx.needs_input_grad[:2]
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            return *_gradients(columns, torch.conj_physical(S), x, dy, *wanted), None, None


def _gradients(
    columns: Tensor, S: Tensor, x: Tensor, dy: Tensor, of_columns: bool, of_x: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Of the columns and of x, given the conjugate spectra of the columns."""
    size, n, one, dS = columns.shape[-1], x.shape[-1] if of_x else 0, S.ndim == 1, None

    def run(some: Tensor, given: Tensor) -> Tensor:
        """The gradient of some rows, which have their share in that of the columns."""
        nonlocal dS
        U = _transformed(given, S, size)
        if of_columns:
            found = _correlated(some, U, S, size)
            dS = found if dS is None else dS + found
        return _back(_between(U, S if one else S.mT), size) if of_x else some[:, :0]

    dx = _by_parts(run, columns, n, x.dtype, x, dy)
    if dS is None:  # no rows, or not wanted
        dcolumns = torch.zeros_like(columns) if of_columns else None
    else:
        dcolumns = converted(irfft(dS if one else dS.permute(2, 1, 0), size), columns.dtype)
    return dcolumns, dx if of_x else None


def _correlated(x: Tensor, U: Tensor, S: Tensor, size: int) -> Tensor:
    """conj(X) U summed over rows, X the spectra of x, which are let go here."""
    X = _transformed(x, S, size).conj_physical_()
    return (X * U).sum(0) if S.ndim == 1 else torch.bmm(X.permute(2, 1, 0), U.permute(2, 0, 1))
