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

from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import pad

from ..kernels.cpu.arrays import as_array
from ..kernels.cpu.compiled import Loops, numbers, wide
from ..kernels.cpu.threads import in_parts
from ._twin import plain_backward
from .kept import KeptProduct
from .stencil import is_plain

SMALLEST = 32  # s: the compiled FFT starts at half of it


def why_not(size: int, device: str, dtype: torch.dtype) -> str | None:
    """Why blocks of this size cannot be multiplied on a type of device and in a dtype, or None."""
    if size & (size - 1) or size < SMALLEST:
        return f"for blocks whose size is a power of two from {SMALLEST}"
    return FORWARD.why_not(dtype) if device == "cpu" else "for CPUs"


class Place(NamedTuple):
    """How entries make up the first column of a block: moved up by `start` places, around its end."""

    size: int  # s
    start: int = 0


def product(columns: Tensor, x: Tensor, m: int, place: Place | None = None) -> Tensor:
    """M x for rows of x, differentiable in both.

    Args:
        columns: the first column of every block, (p, q, s), or of one block, (s,).
        x: vectors (b, n), n at most q s.
        m: at most p s.
        place: where the columns hold fewer entries or begin with others; by default they are as they are.

    Returns:
        Shape (b, m).
    """
    place = place or Place(columns.shape[-1])
    if torch._C._are_functorch_transforms_active():
        return _plain(columns, x, m, place)
    if not torch.is_grad_enabled() or not (columns.requires_grad or x.requires_grad):
        return _multiply(_prepare(columns, place), m, False, x)
    result: Tensor = super(Function, _Blocks).apply(columns, x, m, place)
    return result  # what torch's own `apply` does besides is for transformations


def kept(columns: Tensor, m: int, n: int) -> KeptProduct:
    """The product for columns that are constants, differentiable in x."""
    K = _prepare(columns, Place(columns.shape[-1]))
    return KeptProduct(lambda transposed: partial(_multiply, K, n if transposed else m, transposed))


class _Prepared(NamedTuple):
    """What does not depend on x, as arrays."""

    spectra: Any  # (p, q, 2, s)
    turns: Any  # of the FFT
    g: Any
    loops: Any  # the module of the compiled loops


@cache
def _loops() -> Any:
    from ..kernels.cpu import circulant  # imports numba

    return circulant


def _prepare(columns: Tensor, place: Place) -> _Prepared:
    (p, q), (size, start), loops = _grid(columns), place, _loops()
    array = as_array(columns.contiguous())
    spectra = np.empty((p, q, 2, size), array.dtype)
    turns, g = loops.tables(size // 2, "float32" if columns.dtype is torch.float32 else "float64")
    loops.block_spectra(array.reshape(p * q, -1), start, spectra, turns, g)
    return _Prepared(spectra, turns, g, loops)


def _multiply(K: _Prepared, size: int, transposed: bool, x: Tensor) -> Tensor:
    source = as_array(x.contiguous())
    y = np.empty((len(source), size), source.dtype)

    def rows(start: int, stop: int) -> None:
        K.loops.product(source[start:stop], y[start:stop], K.spectra, transposed, K.turns)

    in_parts(len(source), K.spectra.size, rows)
    return torch.from_numpy(y)


def _grid(columns: Tensor) -> Sequence[int]:
    """How many rows and columns of blocks."""
    return columns.shape[:2] if columns.ndim == 3 else (1, 1)


def _plain(columns: Tensor, x: Tensor, m: int, place: Place) -> Tensor:
    (p, q), (size, start) = _grid(columns), place
    blocks = torch.fft.rfft(pad(x, (0, q * size - x.shape[-1])).unflatten(-1, (q, size)))
    moved = pad(columns, (0, size - columns.shape[-1])).roll(-start, -1)
    y = torch.einsum("bqf,pqf->bpf", blocks, torch.fft.rfft(moved.reshape(p, q, size)))
    return torch.fft.irfft(y, size).flatten(-2)[..., :m]


class _Blocks(Function):
    @staticmethod
    def forward(ctx: Any, columns: Tensor, x: Tensor, m: int, place: Place) -> Tensor:
        K = _prepare(columns, place)
        ctx.K, ctx.m, ctx.place = K, m, place
        ctx.save_for_backward(columns, x)
        return _multiply(K, m, False, x)

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        columns, x = ctx.saved_tensors
        if torch.is_grad_enabled() or not is_plain(u) or BACKWARD.why_not(x.dtype) is not None:
            plain = partial(_plain, m=ctx.m, place=ctx.place)
            return *plain_backward(plain, (columns, x), u), None, None
        of_columns, of_x, *_ = ctx.needs_input_grad
        shape = columns.shape if of_columns else None
        return *_gradients(ctx.K, x, u, shape, ctx.place.start, of_x), None, None


def _gradients(
    K: _Prepared, x: Tensor, u: Tensor, columns: Sequence[int] | None, start: int, of_x: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Of the columns, given their shape, and of x; None where they are not wanted."""
    given, source = as_array(u.contiguous()), as_array(x.contiguous())
    dx = np.empty(source.shape if of_x else (0, 0), source.dtype)
    shape = (0, 1) if columns is None else columns
    parts: dict[int, Any] = {}

    def rows(first: int, stop: int) -> None:
        part = slice(first, stop)
        found = parts[first] = np.empty(shape, source.dtype)
        given_rows = given[part], source[part], dx[part], found.reshape(-1, shape[-1])
        K.loops.backward(*given_rows, start, K.spectra, K.turns, K.g)

    in_parts(len(source), K.spectra.size, rows)
    dcolumns = parts.pop(0)
    for first in sorted(parts):  # in the order of the rows, so that sums do not depend on the clock
        dcolumns += parts[first]
    return None if columns is None else torch.from_numpy(dcolumns), torch.from_numpy(dx) if of_x else None


_TINY = Place(SMALLEST, 7)


def _tiny(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Columns of fewer entries and x, the columns in float64, and the dense matrix of those, 50 x 75."""
    columns, x = numbers(2, 3, SMALLEST - 5, dtype=dtype), numbers(2, 75, dtype=dtype)
    copy, i = wide(columns).requires_grad_(), torch.arange(SMALLEST)
    blocks = pad(copy, (0, 5))[..., (i.unsqueeze(1) - i + _TINY.start) % SMALLEST]
    return columns, x, copy, blocks.transpose(1, 2).flatten(2).flatten(0, 1)[:50, :75]


def _check_forward(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    columns, x, _, M = _tiny(dtype)
    yield product(columns, x, len(M), _TINY), wide(x) @ M.detach().mT


def _check_backward(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    columns, x, copy, M = _tiny(dtype)
    u = numbers(2, len(M), dtype=dtype)
    dcolumns, dx = _gradients(_prepare(columns, _TINY), x, u, columns.shape, _TINY.start, True)
    (right,) = torch.autograd.grad(((wide(x) @ M.mT) * wide(u)).sum(), copy)
    for got, wanted in ((dcolumns, right), (dx, wide(u) @ M.detach())):
        assert got is not None
        yield got, wanted


FORWARD = Loops("the product of circulant blocks", _check_forward)
BACKWARD = Loops("the gradients of circulant blocks", _check_backward)
