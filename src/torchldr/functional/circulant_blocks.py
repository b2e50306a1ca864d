"""Products with a grid of circulant blocks, and their dense matrices.

    matrix        block (p, q) is circulant with first column columns[p, q], M[i, j] = column[(i - j) mod b]
    convolution   y_p = sum_q columns[p, q] (*) x_q, cyclic convolutions of length b

The last blocks of x and of y may be cropped. One column alone is a grid of one block: then M is the leading
part of a circulant matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..kernels.cpu import circulant as by_c
from ..kernels.cpu import library
from . import scan
from .fft import leading
from .operator import Operator
from .prepared import Prepared
from .ring import ring

SMALLEST = 32  # entries of a block by C

# The dense matrices.


def circulants(column: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """(..., b) to (..., b, b): the circulant matrix with that first column."""
    return CIRCULANTS(column, dtype or column.dtype)


def _plain_circulants(column: Tensor, dtype: torch.dtype) -> Tensor:
    i = torch.arange(column.shape[-1], device=column.device)
    return column.to(dtype)[..., (i.unsqueeze(1) - i) % len(i)]


def _circulants(column: Tensor, dtype: torch.dtype) -> Tensor:
    """Every row is a part of the column, reversed and twice in a row."""
    twice = torch.cat((column, column), -1).to(dtype).flip(-1)[..., :-1]
    return twice.unfold(-1, column.shape[-1], 1).flip(-2)


def _fake_circulants(column: Tensor, dtype: torch.dtype) -> Tensor:
    return column.new_empty(*column.shape, column.shape[-1], dtype=dtype)


def _diagonal_sums(
    D: Tensor, arguments: Sequence[Any], saved: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Tensor]:
    """sum_j D[(k + j) mod b, j]: by rows that are sheared, or by a GPU's scan."""
    column = arguments[0]
    b, wide = D.shape[-1], torch.promote_types(D.dtype, torch.float32)
    if scan.serves(D) and b >= 128:
        sums = scan.diagonal_sums(D)
        return [torch.cat((sums[..., :1], sums[..., 1:].flip(-1)), -1).to(column.dtype)]
    twice = torch.cat((D.mT, D.mT), -1).flatten(-2)
    rows = pad(twice, (0, b)).unflatten(-1, (b, 2 * b + 1))[..., :b]  # D[(k + j) mod b, j] in row j
    sums = rows.sum(-2, dtype=wide)
    return [sums.to(column.dtype)]


CIRCULANTS = Operator(
    "circulants",
    "Tensor column, ScalarType dtype",
    plain=_plain_circulants,
    kernel=lambda column, dtype: _circulants(column, dtype).contiguous(),
    fake=_fake_circulants,
    gradient=_diagonal_sums,
    serves=lambda column, dtype: True,
    samples=lambda: iter([(torch.randn(5), torch.float32), (torch.randn(2, 3, 4), torch.float64)]),
)


# Products with vectors.


def product(columns: Tensor, x: Tensor, m: int) -> Tensor:
    """M x for rows of x, differentiable in both: by C where blocks have a power of two of entries.

    Args:
        columns: the first column of every block, (p, q, b), or of one block, (b,).
        x: vectors (rows, n), n at most q b.
        m: at most p b.

    Returns:
        Shape (rows, m).

    The same, slowly: the dense blocks of `circulants`, put together.
    """
    columns = columns if columns.ndim == 3 else columns.reshape(1, 1, -1)
    return BLOCKS(columns, x, m) if fits(columns) else _plain(columns, x, m)


def fits(columns: Tensor) -> bool:
    """Whether C multiplies by blocks of this size, on this device."""
    b = columns.shape[-1]
    return columns.device.type == "cpu" and b >= SMALLEST and b & (b - 1) == 0


def _plain(columns: Tensor, x: Tensor, m: int) -> Tensor:
    """By torch's FFTs. Products of spectra are dense matrix products, one for each frequency."""
    return _by_frequency(x, _frequencies(columns), columns.shape[-1], m)


def _frequencies(columns: Tensor) -> Tensor:
    """The spectra of the blocks, (f, q, p) for frequencies f."""
    b = columns.shape[-1]
    return ring(b, b, 1).analyse(columns).movedim(-1, -3).mT


def _by_frequency(x: Tensor, spectra: Tensor, b: int, m: int) -> Tensor:
    of, (q, p) = ring(b, b, 1), spectra.shape[-2:]
    if behind := q * b - x.shape[-1]:
        x = pad(x, (0, behind))
    parts = of.analyse(x.unflatten(-1, (q, b)))
    if p == q == 1:  # of one block: a matrix product would exchange rows and frequencies for it
        return leading(of.synthesise(parts * spectra.movedim(-3, -1)).flatten(-2), m)
    y = (parts.movedim(-1, -3) @ spectra).movedim(-3, -1)
    return leading(of.synthesise(y).flatten(-2), m)


def _serves(columns: Tensor, x: Tensor, m: int) -> bool:
    return fits(columns) and library.serves(columns, x) and x.ndim == columns.ndim - 1


def _kernel(columns: Tensor, x: Tensor, m: int) -> tuple[Tensor, Tensor]:
    spectra = by_c.spectra(columns.contiguous(), columns.shape[-1])
    return by_c.product(spectra, x.contiguous(), m), spectra


def _fake(columns: Tensor, x: Tensor, m: int) -> tuple[Tensor, Tensor]:
    return x.new_empty(*x.shape[:-1], m), columns.new_empty(*columns.shape[:-1], 2, columns.shape[-1])


def _gradient(
    u: Tensor, arguments: Sequence[Any], saved: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Tensor | None]:
    columns, x, _ = arguments
    given = u.contiguous(), x.contiguous(), saved[0].contiguous(), columns.shape[-1]
    return [*by_c.backward(*given, columns=wanted[0], vectors=wanted[1])]


def _samples() -> Iterator[tuple[Any, ...]]:
    yield torch.randn(1, 1, 32), torch.randn(3, 30), 32
    yield torch.randn(2, 3, 64), torch.randn(2, 190), 100


BLOCKS = Operator(
    "blocks",
    "Tensor columns, Tensor x, int m",
    plain=_plain,
    kernel=_kernel,
    fake=_fake,
    gradient=_gradient,
    serves=_serves,
    samples=_samples,
)


# Constant blocks.


def frozen(columns: Tensor, m: int) -> Prepared:
    """The product with constant blocks."""
    columns = columns if columns.ndim == 3 else columns.reshape(1, 1, -1)
    p, q, b = columns.shape
    words = f"{p + q} real FFTs of length {b} a row, spectra prepared"
    if not fits(columns) or not library.serves(columns):
        pairs = torch.view_as_real(_frequencies(columns).contiguous())
        return Prepared(words, _by_pairs, {"b": b, "m": m}, spectra=pairs)
    spectra = by_c.spectra(columns.contiguous(), b)
    return Prepared(words, _by_spectra, {"m": m}, columns=columns.clone(), spectra=spectra)


def _by_pairs(x: Tensor, spectra: Tensor, b: int, m: int) -> Tensor:
    return _by_frequency(x.to(spectra.dtype), torch.view_as_complex(spectra), b, m).to(x.dtype)


def _by_spectra(x: Tensor, columns: Tensor, spectra: Tensor, m: int) -> Tensor:
    return CONSTANT_BLOCKS(x.to(columns.dtype), columns, spectra, m).to(x.dtype)


def _constant_kernel(x: Tensor, columns: Tensor, spectra: Tensor, m: int) -> Tensor:
    return by_c.product(spectra, x.contiguous(), m)


def _constant_gradient(
    u: Tensor, arguments: Sequence[Any], saved: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Tensor | None]:
    x, columns, spectra, m = arguments
    if any(wanted[1:]):
        dcolumns, dx = torch.func.vjp(partial(_plain, m=m), columns, x)[1](u)
        return [dx, dcolumns, torch.zeros_like(spectra)]
    return [by_c.product(spectra, u.contiguous(), x.shape[-1], transposed=True), None, None]


def _constant_samples() -> Iterator[tuple[Any, ...]]:
    for columns, x, m in _samples():
        columns = columns.double()  # of which the spectra are right to all digits
        yield x.double(), columns, by_c.spectra(columns, columns.shape[-1]), m


def _rows(info: Any, dims: Sequence[int | None], apply: Any, arguments: Sequence[Any]) -> Any:
    """Mapped vectors join the rows."""
    x, columns, _, m = arguments
    if dims[0] is not None and dims[1] is None:
        x = x.movedim(dims[0], 0)
        return (apply(x.flatten(0, -2), *arguments[1:])[0].unflatten(0, x.shape[:-1]),), (0,)
    return (torch.vmap(lambda c, x: _plain(c, x, m), in_dims=(dims[1], dims[0]))(columns, x),), (0,)


CONSTANT_BLOCKS = Operator(
    "constant_blocks",
    "Tensor x, Tensor columns, Tensor spectra, int m",
    plain=lambda x, columns, spectra, m: _plain(columns, x, m),
    kernel=_constant_kernel,
    fake=lambda x, columns, spectra, m: x.new_empty(*x.shape[:-1], m),
    gradient=_constant_gradient,
    serves=lambda x, columns, spectra, m: x.ndim == 2 and library.serves(x, columns, spectra),
    samples=_constant_samples,
    batched=_rows,
)
