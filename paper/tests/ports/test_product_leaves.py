"""The port product with leaves of the size that it ships with; the other tests take smaller ones."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from torchldr.functional.reference import krylov_of_ring_reference
from torchldr.matrices.ldr_td.operators import growth_rate
from torchldr_paper.ports import PortPlan, port_matmul, port_rmatmul


def near_shift(n: int, seed: int = 0, corners: float = 0.0) -> tuple[list[Tensor], Tensor]:
    """Subdiagonal 1 +- .05, others +- .1, divided by the growth of |A^t v|, and a start vector; float64."""
    generator = torch.Generator().manual_seed(seed)
    lower, diagonal, upper = 2 * torch.rand(3, n, generator=generator, dtype=torch.float64) - 1
    ring = [1 + 0.05 * lower, 0.1 * diagonal, 0.1 * upper]
    ring[0][0], ring[2][-1] = corners, corners
    V = torch.randn(1, n, generator=generator, dtype=torch.float64)
    rate = math.exp(growth_rate(*ring, V, n))
    return [x / rate for x in ring], V


@pytest.mark.parametrize(("n", "corners"), [(100, 0.1), (700, 0.0), (1000, 0.1)])
def test_values_and_gradients(n: int, corners: float) -> None:
    ring, V = near_shift(n, corners=corners)
    leaves = [x.requires_grad_() for x in (*ring, V)]
    U, w = torch.randn(2, n, dtype=torch.float64), torch.randn(2, 1, n, dtype=torch.float64)
    K = krylov_of_ring_reference(*leaves[:3], leaves[3][0], n)
    want = (U @ K).unsqueeze(1), w[:, 0] @ K.mT
    got = port_rmatmul(*leaves, U, n, oversampling=2), port_matmul(*leaves, w, oversampling=2)
    plan = PortPlan(*leaves, n, oversampling=2)
    kept = plan.rmatmul(U), plan.matmul(w)
    for ours, fixed, exact in zip(got, kept, want, strict=True):
        assert (ours - exact).norm() <= 1e-11 * exact.norm()
        assert (fixed - exact).norm() <= 1e-11 * exact.norm()
        weights = torch.randn_like(exact)
        found = torch.autograd.grad(ours, leaves, weights, retain_graph=True)
        true = torch.autograd.grad(exact, leaves, weights, retain_graph=True)
        for a, b in zip(found, true, strict=True):
            assert (a - b).norm() <= 1e-9 * b.norm()


def test_twofold_oversampling_is_enough_for_near_shifts() -> None:
    """Leaves of 32 indices would need fourfold."""
    for seed in range(2):
        ring, V = near_shift(1500, seed)
        U = torch.randn(2, 1500, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        want = U @ krylov_of_ring_reference(*ring, V[0], 1500)
        got = PortPlan(*ring, V, 1500, oversampling=2).rmatmul(U)[:, 0]
        assert (got - want).norm() <= 1e-11 * want.norm()
