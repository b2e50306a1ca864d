"""Sums that decay along rows, against the loop in plain torch."""

from __future__ import annotations

import pytest
import torch

from torchldr.kernels.cpu import library
from torchldr.kernels.cpu.decay import decay


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (7, 5), (2, 9, 4), (3, 11, 20)])
def test_both_ways(shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, X = 1.2 * torch.rand(shape[-2], dtype=dtype), torch.randn(shape, dtype=dtype)
    i, j = torch.arange(shape[-1]), torch.arange(shape[-1]).unsqueeze(1)
    powers = (nodes.double()[:, None, None] ** (j - i).clamp(min=0)).tril()
    right = (powers @ X.double().unsqueeze(-1)).squeeze(-1)
    decay(nodes, ours := X.clone())
    monkeypatch.setattr(library, "serves", lambda *tensors: False)
    decay(nodes, plain := X.clone())
    for found in (ours, plain):
        torch.testing.assert_close(found.double(), right, rtol=1e4 * torch.finfo(dtype).eps, atol=1e-5)
