"""Products with a grid of circulant blocks by the FFTs of torch, some rows at a time, with their gradients.

    y_p = sum_q columns[p, q] (*) x_q                            (*) the cyclic convolution of length s
    dx_q = sum_p columns[p, q] (*)^T dy_p,    dcolumns[p, q] = x_q (*)^T dy_p

Autograd would keep what FFTs of all rows give, in float32, and go back through a real FFT by a complex one.
Here x alone is kept, as it came, and a step takes five real FFTs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from . import stencil
from ._twin import applied, plain_backward
from .fft import conjugate

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
    y: Tensor = applied(_Product, columns if columns.ndim == 3 else columns[None, None], x, m, dtype)
    return y


def _plain(columns: Tensor, x: Tensor, m: int, dtype: torch.dtype) -> Tensor:
    size = columns.shape[-1]
    found = _between(_transformed(x, size), _spectra(columns))
    return torch.fft.irfft(found, size).flatten(-2)[:, :m].to(dtype)


def _wide(t: Tensor) -> Tensor:
    return t.to(torch.promote_types(t.dtype, torch.float32))


def _spectra(columns: Tensor) -> Tensor:
    """(f, q, p)."""
    return torch.fft.rfft(_wide(columns)).permute(2, 1, 0)


def _back(spectra: Tensor, size: int, count: int) -> Tensor:
    """The first so many entries of rows with these spectra, (b, p, f), times the size.

    To divide by that is one more pass over all rows: the spectra that these come from are divided.
    """
    return torch.fft.irfft(spectra, size, norm="forward").flatten(-2)[:, :count]


def _transformed(x: Tensor, size: int) -> Tensor:
    """Of rows (b, n) the spectra of their blocks, (b, q, f)."""
    short = -x.shape[-1] % size
    wide = _wide(x)
    return torch.fft.rfft((pad(wide, (0, short)) if short else wide).unflatten(-1, (-1, size)))


def _between(X: Tensor, S: Tensor) -> Tensor:
    """(b, q, f) by matrices (f, q, p) to (b, p, f)."""
    if S.shape[1:] == (1, 1):
        return X * S.view(-1)
    return torch.bmm(X.permute(2, 0, 1), S).permute(1, 2, 0)


def _parts(x: Tensor, m: int) -> Iterator[slice]:
    """Rows that are transformed together, at least one."""
    step = max(1, ENTRIES // max(m, x.shape[-1]))
    return (slice(first, first + step) for first in range(0, len(x), step))


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(columns: Tensor, x: Tensor, m: int, dtype: torch.dtype) -> Tensor:
        size, y = columns.shape[-1], torch.empty(len(x), m, dtype=dtype, device=x.device)
        S = _spectra(columns) / size
        for rows in _parts(x, m):
            y[rows] = _back(_between(_transformed(x[rows], size), S), size, m)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        columns, x, *ctx.others = inputs
        ctx.save_for_backward(columns, x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        columns, x = ctx.saved_tensors
        if torch.is_grad_enabled() or not stencil.is_plain(dy):
            twin = lambda columns, x: _plain(columns, x, *ctx.others)
            return *plain_backward(twin, (columns, x), dy), None, None
        device, (wanted, rest) = dy.device.type, ctx.needs_input_grad[:2]
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            return *_gradients(columns, x, dy, wanted, rest), None, None


def _gradients(
    columns: Tensor, x: Tensor, dy: Tensor, of_columns: bool, of_x: bool
) -> tuple[Tensor | None, Tensor | None]:
    size, n = columns.shape[-1], x.shape[-1]
    back = conjugate(_spectra(columns) / size).mT if of_x else None
    dS, dx = None, torch.empty_like(x) if of_x else None
    for rows in _parts(x, dy.shape[-1]):
        U = _transformed(dy[rows], size)
        if dx is not None and back is not None:
            dx[rows] = _back(_between(U, back), size, n)
        if of_columns:
            X = _transformed(x[rows], size).conj()
            if columns.shape[:2] == (1, 1):
                found = (X * U).sum(0).view(-1, 1, 1)
            else:
                found = torch.bmm(X.permute(2, 1, 0), U.permute(2, 0, 1))
            dS = found if dS is None else dS + found
    if not of_columns:
        return None, dx
    if dS is None:  # no rows
        return torch.zeros_like(columns), dx
    return torch.fft.irfft(dS.permute(2, 1, 0), size).to(columns.dtype), dx
