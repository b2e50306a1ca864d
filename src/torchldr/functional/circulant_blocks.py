"""Products with a grid of circulant blocks, and their dense matrices.

    matrix        block (p, q) is circulant with first column columns[p, q], M[i, j] = column[(i - j) mod b]
    convolution   y_p = sum_q columns[p, q] (*) x_q, cyclic convolutions of length b

The last blocks of x and of y may be cropped. One column alone is a grid of one block: then M is the leading part
of a circulant matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from . import scan
from .operator import Operator
from .ring import ring

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
    """M x for rows of x, differentiable in both.

    Args:
        columns: the first column of every block, (p, q, b), or of one block, (b,).
        x: vectors (rows, n), n at most q b.
        m: at most p b.

    Returns:
        Shape (rows, m).

    The same, slowly: the dense blocks of `circulants`, put together.
    """
    return _plain(columns, x, m)


def _plain(columns: Tensor, x: Tensor, m: int) -> Tensor:
    columns = columns if columns.ndim == 3 else columns.reshape(1, 1, -1)
    q, b = columns.shape[1:]
    of = ring(b, b, 1)
    blocks = pad(x, (0, q * b - x.shape[-1])).unflatten(-1, (q, b))
    spectra = of.analyse(columns).permute(2, 1, 0)  # (f, q, p)
    y = torch.bmm(of.analyse(blocks).permute(2, 0, 1), spectra).permute(1, 2, 0)
    return of.synthesise(y).flatten(-2)[..., :m].clone(memory_format=torch.contiguous_format)
