"""Conjugate residuals on Toeplitz matrices in C, against dense linear algebra."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchldr.functional.toeplitz_residuals import Compiled
from torchldr.kernels.cpu import library

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))


def toeplitz(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """First column, first row, and the matrix."""
    draw = torch.Generator().manual_seed(n)
    column, row = torch.randn(2, n, generator=draw, dtype=torch.float64) / n**0.5
    column[0] = row[0] = 4
    lags = torch.arange(n).unsqueeze(-1) - torch.arange(n)
    return column, row, torch.where(lags >= 0, column[lags.clamp(min=0)], row[(-lags).clamp(min=0)])


@pytest.mark.parametrize("n", [1, 2, 17, 64, 100, 513])
@pytest.mark.parametrize("transposed", [False, True])
def test_solutions(n: int, transposed: bool) -> None:
    column, row, T = toeplitz(n)
    T = T.mT if transposed else T
    b, target = torch.randn(3, n, dtype=torch.float64), torch.tensor([1e-12, 1e-3, 1e-9], dtype=torch.float64)
    x = Compiled(column, row).solve(b, target, 60, transposed=transposed)
    assert x is not None
    assert bool(((x @ T.mT - b).norm(dim=-1) <= 2 * target + 1e-12).all())


def test_too_few_steps() -> None:
    column, row, _ = toeplitz(200)
    b, target = torch.randn(2, 200, dtype=torch.float64), torch.full((2,), 1e-12, dtype=torch.float64)
    assert Compiled(column, row).solve(b, target, 3, transposed=False) is None
    assert Compiled(column, row).solve(b * torch.nan, target, 60, transposed=False) is None
    assert Compiled(column, row).solve(0 * b, target, 0, transposed=False).count_nonzero() == 0
