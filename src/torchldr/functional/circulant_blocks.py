"""Products with a grid of circulant blocks as one compiled function, with a hand-written backward; on a CPU.

    y_p = sum_q columns[p, q] (*) x_q

where (*) is the cyclic convolution of length s, a power of two, and the last blocks of x and of y may be
cropped. One column alone is a grid of one block: then M is the leading part of a circulant matrix, and a
Toeplitz matrix is one as well. Complex FFTs of length s / 2, one a block of x and one a block of y, with all
that lies between them while it is in cache; `kernels.cpu.circulant` has the formula. Autograd's own backward
of a real FFT is a complex one of the whole length; here it costs as much as the forward. Derivatives of
derivatives go through the plain twin.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import pad

from ..kernels.cpu import compiled
from ..kernels.cpu.arrays import as_array
from ..kernels.cpu.compiled import Loops, numbers, wide
from ..kernels.cpu.threads import in_parts
from ._twin import plain_backward
from .kept import KeptProduct
from .stencil import is_plain

SMALLEST = 32  # s: the compiled FFT starts at half of it


def why_not(size: int, columns: Tensor) -> str | None:
    """Why blocks of this size cannot be multiplied here, or None."""
    if size & (size - 1) or size < SMALLEST:
        return f"for blocks whose size is a power of two from {SMALLEST}"
    if not compiled.serves(columns):
        return compiled.why_not() or "for CPUs"
    return FORWARD.why_not(columns.dtype)


def product(columns: Tensor, x: Tensor, m: int) -> Tensor:
    """M x for rows of x, differentiable in both.

    Args:
        columns: the first column of every block, (p, q, s), or of one block, (s,).
        x: vectors (b, n), n at most q s.
        m: at most p s.

    Returns:
        Shape (b, m).
    """
    if not torch.is_grad_enabled():
        return _multiply(_prepare(columns), m, False, x)
    result: Tensor = _Blocks.apply(columns, x, m)
    return result


def kept(columns: Tensor, m: int, n: int) -> KeptProduct:
    """The product for columns that are constants, differentiable in x."""
    K = _prepare(columns)
    return KeptProduct(lambda transposed: partial(_multiply, K, n if transposed else m, transposed))


class _Prepared(NamedTuple):
    """What does not depend on x, as arrays."""

    spectra: Any  # (p, q, 2, s)
    turns: Any  # of the FFT
    g: Any
    loops: Any  # the module of the compiled loops


def _grid(columns: Tensor) -> tuple[int, int, int]:
    p, q, size = columns.shape if columns.ndim == 3 else (1, 1, columns.shape[0])
    return p, q, size


def _prepare(columns: Tensor) -> _Prepared:
    from ..kernels.cpu import circulant as loops  # imports numba

    p, q, size = _grid(columns)
    array = as_array(columns.contiguous())
    spectra = np.empty((p, q, 2, size), array.dtype)
    turns, g = loops.tables(size // 2, "float32" if columns.dtype is torch.float32 else "float64")
    loops.block_spectra(array.reshape(p * q, size), spectra.reshape(p * q, 2, size), turns, g)
    return _Prepared(spectra, turns, g, loops)


def _multiply(K: _Prepared, size: int, transposed: bool, x: Tensor) -> Tensor:
    source = as_array(x.contiguous())
    y = np.empty((len(source), size), source.dtype)

    def rows(start: int, stop: int) -> None:
        K.loops.product(source[start:stop], y[start:stop], K.spectra, transposed, K.turns)

    in_parts(len(source), K.spectra.size, rows)
    return torch.from_numpy(y)


def _plain(columns: Tensor, x: Tensor, m: int) -> Tensor:
    p, q, size = _grid(columns)
    blocks = torch.fft.rfft(pad(x, (0, q * size - x.shape[-1])).unflatten(-1, (q, size)))
    y = torch.einsum("bqf,pqf->bpf", blocks, torch.fft.rfft(columns.reshape(p, q, size)))
    return torch.fft.irfft(y, size).flatten(-2)[..., :m]


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, columns: Tensor, x: Tensor, m: int) -> Tensor:
        K = _prepare(columns)
        ctx.K, ctx.m = K, m
        ctx.save_for_backward(columns, x)
        return _multiply(K, m, False, x)

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        columns, x = ctx.saved_tensors
        again = torch.is_grad_enabled() or forward_ad._current_level >= 0 or not is_plain(u)
        if again or not BACKWARD.serves(u):
            return *plain_backward(partial(_plain, m=ctx.m), (columns, x), u), None
        of_columns, of_x, _ = ctx.needs_input_grad
        dcolumns, dx = _gradients(ctx.K, x, u, of_columns, of_x)
        return dcolumns.reshape(columns.shape) if of_columns else None, dx if of_x else None, None


def _gradients(K: _Prepared, x: Tensor, u: Tensor, of_columns: bool, of_x: bool) -> tuple[Tensor, Tensor]:
    """Of the columns (p q, s) and of x; empty where they are not wanted."""
    p, q, _, size = K.spectra.shape
    given, source = as_array(u.contiguous()), as_array(x.contiguous())
    dx = np.empty(source.shape if of_x else (0, 0), source.dtype)
    dcolumns = np.empty((p * q if of_columns else 0, size), source.dtype)
    parts: dict[int, Any] = {}

    def rows(start: int, stop: int) -> None:
        part = slice(start, stop)
        parts[start] = np.zeros(K.spectra.shape if of_columns else (0, 0, 0, 0), source.dtype)
        K.loops.backward(given[part], source[part], dx[part], K.spectra, parts[start], K.turns)

    in_parts(len(source), K.spectra.size, rows)
    sums = parts.pop(0)
    for start in sorted(parts):  # in the order of the rows, so that sums do not depend on the clock
        sums += parts[start]
    K.loops.column_gradients(sums.reshape(-1, 2, size), dcolumns, K.turns, K.g)
    return torch.from_numpy(dcolumns), torch.from_numpy(dx)


def _tiny(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Columns and x, and the dense matrix of the same with its columns in float64; M is 50 x 75."""
    columns, x = numbers(2, 3, SMALLEST, dtype=dtype), numbers(2, 75, dtype=dtype)
    copy, i = wide(columns).requires_grad_(), torch.arange(SMALLEST)
    blocks = copy[..., (i.unsqueeze(1) - i) % SMALLEST]
    return columns, x, copy, blocks.transpose(1, 2).flatten(2).flatten(0, 1)[:50, :75]


def _check_forward(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    columns, x, _, M = _tiny(dtype)
    yield product(columns, x, len(M)), wide(x) @ M.detach().mT


def _check_backward(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    columns, x, copy, M = _tiny(dtype)
    u = numbers(2, len(M), dtype=dtype)
    found, dx = _gradients(_prepare(columns), x, u, True, True)
    (right,) = torch.autograd.grad(((wide(x) @ M.mT) * wide(u)).sum(), copy)
    yield from ((found, right.flatten(0, 1)), (dx, wide(u) @ M.detach()))


FORWARD = Loops("the product of circulant blocks", _check_forward)
BACKWARD = Loops("the gradients of circulant blocks", _check_backward)
