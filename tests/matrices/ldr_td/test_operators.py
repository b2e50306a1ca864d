"""What `operator_report` says, and the growth of powers."""

from __future__ import annotations

import json
import math

import pytest
import torch

import torchldr
from torchldr.functional.reference import krylov_of_ring_reference
from torchldr.matrices.ldr_td.operators import growth_rate


def test_a_report_of_known_operators() -> None:
    """A is a shift; C sends half of everything back, without loss."""
    n = 300
    M = torchldr.LDRTridiagonal.random(
        n, n, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    for name, value in {"subdiagonal_A": 1, "subdiagonal_C": 0.5, "superdiagonal_C": 0.5}.items():
        M.tensors[name].fill_(value)
    for name in ("diagonal_A", "superdiagonal_A", "corners_A", "diagonal_C", "corners_C"):
        M.tensors[name].zero_()
    A, C = M.operator_report()
    assert (A["side"], C["side"]) == ("A", "C")
    assert A["subdiagonal"] == [1, 1]
    assert A["row_sum"] == 1
    assert A["growth"] == pytest.approx(1, rel=0.02)
    assert A["spectral_radius"] < 1  # nilpotent, but for rounding
    assert C["row_sum"] == 1
    assert C["spectral_radius"] == pytest.approx(1, abs=1e-3)
    json.dumps([A, C])


def test_growth_is_the_slope_of_the_logarithms_of_norms() -> None:
    n, k = 40, 30
    ring, V = torch.randn(3, n, dtype=torch.float64), torch.randn(2, n, dtype=torch.float64)
    logs = krylov_of_ring_reference(*ring, V, k).norm(dim=(0, 1)).log()
    steps = torch.arange(k, dtype=torch.float64)
    slope = torch.linalg.lstsq(torch.stack((steps, torch.ones_like(steps)), 1), logs.unsqueeze(1))
    assert growth_rate(*ring, V, k) == pytest.approx(float(slope.solution[0]), rel=1e-10)


def test_growth_beyond_any_dtype_and_to_zero() -> None:
    ones, zeros, V = torch.ones(1000), torch.zeros(1000), torch.rand(1, 1000)
    assert growth_rate(50 * ones, zeros, zeros, V, 1000) == pytest.approx(math.log(50), rel=1e-3)
    assert growth_rate(zeros, zeros, zeros, V, 1000) == 0
    lower = (torch.arange(5) > 0).double()  # a shift: A^5 = 0
    first = torch.eye(5, dtype=torch.float64)[:1]
    assert growth_rate(2 * lower, 0 * lower, 0 * lower, first, 9) == pytest.approx(math.log(2))
