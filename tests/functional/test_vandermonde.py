"""Powers of nodes, and the matrices that they make column by column."""

import torch

from torchldr.functional import vandermonde
from torchldr.functional.stein_scan import column_scan, scans


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
    assert scans(nodes, E)
    X = column_scan(nodes, E)
    for i in range(7):
        torch.testing.assert_close(X[:, i], E[:, i] + (nodes * X[:, i - 1] if i else 0))
    nodes.requires_grad_(), E.requires_grad_()
    assert torch.autograd.gradcheck(column_scan, (nodes, E), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(column_scan, (nodes, E))
