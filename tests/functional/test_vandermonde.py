"""Powers of nodes, and the matrices that they make column by column."""

import pytest
import torch
from torch.nn.functional import pad

import torchldr
from torchldr.functional import vandermonde
from torchldr.functional.columns import column_scan


def test_powers_are_not_subnormal():
    nodes = vandermonde.chebyshev_points(256, torch.float32)
    powers = vandermonde._powers(nodes, vandermonde.TILE)
    exact = nodes.double().unsqueeze(-1) ** torch.arange(vandermonde.TILE)
    tiny = torch.finfo(torch.float32).tiny
    assert not ((powers != 0) & (powers.abs() < tiny)).any()
    torch.testing.assert_close(powers.double(), exact, rtol=1e-5, atol=tiny)


def test_columns_of_a_stack():
    """By rows on a CPU: values and gradients, once and again, and forward mode."""
    nodes, E = torch.randn(3, 5, dtype=torch.float64), torch.randn(3, 7, 5, dtype=torch.float64)
    X = column_scan(nodes, E)
    for i in range(7):
        torch.testing.assert_close(X[:, i], E[:, i] + (nodes * X[:, i - 1] if i else 0))
    nodes.requires_grad_(), E.requires_grad_()
    assert torch.autograd.gradcheck(column_scan, (nodes, E), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(column_scan, (nodes, E))


@pytest.mark.parametrize("n", [2, 3, 70])
@pytest.mark.parametrize("product", ["matmul", "rmatmul", "dense", "matrix"])
def test_nodes_that_are_zero_or_tiny(n, product):
    """Their powers vanish, the derivatives of these do not: values, gradients and second gradients."""
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    nodes = torch.tensor([0.0, -0.0, 1e-310, -1e-200, 0.5, 1.0], dtype=torch.float64)
    leaves = [t.requires_grad_() for t in (nodes, draw(1, 6), draw(1, n))]
    M = torchldr.VandermondeLike(6, n, G=leaves[1], H=leaves[2], nodes=nodes, learn_nodes=True)
    powers = torch.stack([nodes**j for j in range(n)], -1)
    h = torch.stack([pad(leaves[2][0], (j, 0))[:n] for j in range(n)])
    want = leaves[1].mT * (powers @ h)
    units = {side: torch.eye(side, dtype=torch.float64) for side in (6, n)}
    got = {
        "matmul": lambda: M.matmul(units[n]).mT,
        "rmatmul": lambda: M.rmatmul(units[6]),
        "dense": M.to_dense,
        "matrix": lambda: leaves[1].mT * (vandermonde.vandermonde_matmul(nodes, units[n]).mT @ h),
    }[product]()
    torch.testing.assert_close(got, want)
    weights = draw(6, n)
    first = [torch.autograd.grad((y * weights).sum(), leaves, create_graph=True) for y in (got, want)]
    torch.testing.assert_close(*first)
    torch.testing.assert_close(
        *[torch.autograd.grad(sum(g.sin().sum() for g in gradients), leaves) for gradients in first]
    )
