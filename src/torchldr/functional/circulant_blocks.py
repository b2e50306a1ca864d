"""Products with a grid of circulant blocks by C, with a hand-written backward; on a CPU.

    y_p = sum_q columns[p, q] (*) x_q

where (*) is the cyclic convolution of length s, a power of two, and the last blocks of x and of y may be
cropped. One column alone is a grid of one block: then M is the leading part of a circulant matrix, and a
Toeplitz matrix is one as well. Complex FFTs of length s / 2, one a block of x and one a block of y, with all
that lies between them while it is in cache; `kernels.cpu.circulant` has the formula. Autograd's own backward
of a real FFT is a complex one of the whole length; here it costs as much as the forward. Derivatives of
derivatives go through the plain twin.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import pad

from ..kernels.cpu import circulant, library
from ._twin import in_memory, plain_backward
from .kept import KeptProduct, Product
from .stencil import is_plain

SMALLEST = 32  # s: the compiled FFT starts at half of it


def why_not(size: int, device: str, dtype: torch.dtype) -> str | None:
    """Why blocks of this size cannot be multiplied on a type of device and in a dtype, or None."""
    if size & (size - 1) or size < SMALLEST:
        return f"for blocks whose size is a power of two from {SMALLEST}"
    if device != "cpu":
        return "for CPUs"
    return library.why_not() if dtype in (torch.float32, torch.float64) else "for float32 and float64"


class Place(NamedTuple):
    """How entries make up the first column of a block: moved up by `start` places, around its end."""

    size: int  # s
    start: int = 0


def prepare(columns: Tensor, place: Place) -> Tensor:
    """The spectra of a grid of blocks, for `apply`: (.., p, q, 2, s) for columns (.., p, q, entries)."""
    return circulant.spectra(in_memory(columns), *place)


def apply(spectra: Tensor, x: Tensor, m: int, *, transposed: bool = False) -> Tensor:
    """M x (.., b, m) for x (.., b, n), or M^T x, by the spectra of M; no gradient."""
    return circulant.product(spectra, in_memory(x), m, transposed=transposed)


def forward(columns: Tensor, x: Tensor, m: int, place: Place) -> tuple[Tensor, Tensor]:
    """M x, and the spectra, which `backward` needs again."""
    spectra = prepare(columns, place)
    return apply(spectra, x, m), spectra


def backward(
    u: Tensor, x: Tensor, spectra: Tensor, entries: int, start: int, needs: Sequence[bool] = (True, True)
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of the columns, (.., p, q, entries), and of x, as far as they are needed."""
    given, source = in_memory(u), in_memory(x)
    return circulant.backward(given, source, spectra, entries, start, columns=needs[0], vectors=needs[1])


# One grid, differentiable.


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
        return apply(prepare(_blocks(columns), place), x, m)
    result: Tensor = super(Function, _Blocks).apply(columns, x, m, place)
    return result  # what torch's own `apply` does besides is for transformations


def kept(columns: Tensor, m: int, n: int) -> KeptProduct:
    """The product for columns that are constants, differentiable in x."""
    spectra = prepare(_blocks(columns.detach()), Place(columns.shape[-1]))

    def prepared(transposed: bool) -> Product:
        return lambda x: apply(spectra, x, n if transposed else m, transposed=transposed)

    return KeptProduct(prepared)


def _blocks(columns: Tensor) -> Tensor:
    """A grid of them, (p, q, entries)."""
    return columns if columns.ndim == 3 else columns.view(1, 1, -1)


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
        y, ctx.spectra = forward(_blocks(columns), x, m, place)
        ctx.m, ctx.place = m, place
        ctx.save_for_backward(columns, x)
        return y

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        columns, x = ctx.saved_tensors
        if torch.is_grad_enabled() or not is_plain(u):
            plain = partial(_plain, m=ctx.m, place=ctx.place)
            return *plain_backward(plain, (columns, x), u), None, None
        needs, place = ctx.needs_input_grad[:2], ctx.place
        found, dx = backward(u, x, ctx.spectra, columns.shape[-1], place.start, needs)
        return None if found is None else found.view(columns.shape), dx, None, None
