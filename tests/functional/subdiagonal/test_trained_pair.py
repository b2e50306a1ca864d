"""The products that a GPU trains with, by their plain form, against the dense matrix."""

from __future__ import annotations

import pytest
import torch

from torchldr.functional.stein import stein_matrix
from torchldr.functional.subdiagonal import trained_pair
from torchldr.functional.subdiagonal.guard import RANGE, Side


def drawn(n: int, r: int, spread: float, scale: float) -> Side:
    below = scale * (1 + spread * (2 * torch.rand(n - 1, dtype=torch.float64) - 1))
    below[::3] *= -1
    parts = below, torch.tensor(0.7, dtype=torch.float64), torch.randn(r, n, dtype=torch.float64)
    return tuple(t.requires_grad_() for t in parts)


@pytest.mark.parametrize("n", [2, 6, 16, 90])
@pytest.mark.parametrize("r", [1, 3])
@pytest.mark.parametrize("scale", [1.0, 1.5])
def test_values_and_gradients(n: int, r: int, scale: float) -> None:
    """A scale that A has and C takes back does no harm."""
    torch.manual_seed(n)
    A, C = drawn(n, r, 0.02, scale), drawn(n, r, 0.02, 1 / scale)
    x, u = torch.randn(2, 5, n, dtype=torch.float64)
    x.requires_grad_()
    (a, f, G), (c, e, H) = A, C
    W = stein_matrix((f.reshape(1), a), (e.reshape(1), c), G, H)
    y = trained_pair.product(A, C, x, RANGE)
    assert y is not None
    wanted = torch.autograd.grad(x @ W.mT, [x, *A, *C], u)
    for got, want in zip(torch.autograd.grad(y, [x, *A, *C], u), wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(y, x @ W.mT, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("broken", [0.0, 1e-4, torch.nan])
def test_operators_out_of_range_are_refused(broken: float) -> None:
    A, C = drawn(16, 1, 0.0, 1.0), drawn(16, 1, 0.0, 1.0)
    with torch.no_grad():
        A[0][5] = broken
    assert trained_pair.product(A, C, torch.randn(3, 16, dtype=torch.float64), RANGE) is None


@pytest.mark.parametrize("f", [1, -1])
@pytest.mark.parametrize(("n", "r"), [(2, 1), (12, 2), (64, 3)])
def test_shifts(n: int, r: int, f: int) -> None:
    torch.manual_seed(n)
    G, H = torch.randn(2, r, n, dtype=torch.float64)
    x, u = torch.randn(2, 5, n, dtype=torch.float64)
    leaves = [t.requires_grad_() for t in (G, H, x)]
    want = x @ stein_matrix((f, None), (-f, None), G, H).mT
    y = trained_pair.product_of_shifts(G, H, f, x)
    torch.testing.assert_close(y, want, rtol=1e-10, atol=1e-10)
    gradients = zip(torch.autograd.grad(y, leaves, u), torch.autograd.grad(want, leaves, u), strict=True)
    for got, wanted in gradients:
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)
