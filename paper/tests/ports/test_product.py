"""The port product against the stencil in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchldr.functional.reference import krylov_of_ring_reference
from torchldr_paper.ports import port_matmul, port_rmatmul

pytestmark = pytest.mark.usefixtures("small_leaves")


def forgetful_ring(n: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """A near shift with both corners, absolute row sums at most 1."""
    lower, diagonal, upper = torch.randn(3, n, generator=generator, dtype=torch.float64)
    ring = torch.stack((1 + 0.05 * lower, 0.1 * diagonal, 0.1 * upper))
    return list((ring / ring.abs().sum(0).max()).to(dtype))


def krylov(ring: list[Tensor], V: Tensor, k: int) -> Tensor:
    """(r, n, k) in float64."""
    return krylov_of_ring_reference(*(x.double() for x in ring), V.double(), k)


def tolerance(K: Tensor, left: Tensor, dtype: torch.dtype) -> float:
    """The largest |K|^T |u|, times eps; closing a ring in float64 leaves 3e-13 twice (`_closed`)."""
    eps = 1e-12 if dtype == torch.float64 else 16 * torch.finfo(dtype).eps
    return eps * float((left.double().abs() @ K.abs()).max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(
    n=st.one_of(st.integers(1, 70), st.integers(71, 500)),
    share=st.sampled_from([0.3, 1.0, 1.7, 5.0]),
    r=st.integers(1, 3),
    b=st.integers(1, 3),
    seed=st.integers(0, 1 << 20),
)
@settings(max_examples=15, deadline=None)
def test_both_products(dtype: torch.dtype, n: int, share: float, r: int, b: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    k = max(1, round(share * n))
    ring = forgetful_ring(n, generator, dtype)
    V, U = (torch.randn(i, n, generator=generator, dtype=dtype) for i in (r, b))
    K = krylov(ring, V, k)
    got = port_rmatmul(*ring, V, U, k)
    assert got.shape == (b, r, k)
    assert got.dtype == dtype
    want = torch.einsum("bn,rnk->brk", U.double(), K)
    torch.testing.assert_close(got.double(), want, rtol=0, atol=tolerance(K, U, dtype))
    w = torch.randn(b, r, k, generator=generator, dtype=dtype)
    got, want = port_matmul(*ring, V, w), torch.einsum("brk,rnk->bn", w.double(), K)
    assert got.shape == (b, n)
    rows = K.transpose(1, 2).flatten(0, 1).unsqueeze(0)
    assert (got - want).abs().max() <= tolerance(rows, w.flatten(1), dtype)


@pytest.mark.parametrize("corner", [1.0, -1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 7, 100, 511])
def test_a_ring_without_loss(n: int, corner: float, dtype: torch.dtype) -> None:
    """Z_1 and Z_{-1} have all their poles on the unit circle."""
    generator = torch.Generator().manual_seed(n)
    lower, zeros = torch.ones(n, dtype=dtype), torch.zeros(n, dtype=dtype)
    lower[0] = corner
    V, U = torch.randn(2, 2, n, generator=generator, dtype=dtype)
    for k in (n, 2 * n + 1):
        K = krylov([lower, zeros, zeros], V, k)
        want = torch.einsum("bn,rnk->brk", U.double(), K)
        got = port_rmatmul(lower, zeros, zeros, V, U, k)
        assert (got - want).abs().max() <= 5 * tolerance(K, U, dtype)


def test_more_oversampling_serves_longer_memory() -> None:
    """Superdiagonal 1/3 against 2/3 rings on for many lengths of a block."""
    n, generator = 256, torch.Generator().manual_seed(0)
    lower, zeros = torch.full((n,), 2 / 3, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    upper = 1 - lower
    lower[0] = upper[-1] = 0
    V, U = torch.randn(2, 1, n, generator=generator, dtype=torch.float64)
    want = U @ krylov([lower, zeros, upper], V, n)[0]
    errors = [
        float((port_rmatmul(lower, zeros, upper, V, U, n, oversampling=c)[:, 0] - want).abs().max())
        for c in (2, 8, 32)
    ]
    assert errors[0] > 1e-6
    assert errors[1] < errors[0] / 100
    assert errors[2] < 1e-13 * float(want.abs().max()) * 100


@pytest.mark.parametrize("n", [5, 67])
def test_gradients(n: int) -> None:
    generator = torch.Generator().manual_seed(n)
    ring = forgetful_ring(n, generator)
    V, U = (torch.randn(i, n, generator=generator, dtype=torch.float64) for i in (1, 2))
    w = torch.randn(2, 1, 4, generator=generator, dtype=torch.float64)
    inputs = [x.requires_grad_() for x in (*ring, V, U)]
    assert torch.autograd.gradcheck(lambda *x: port_rmatmul(*x, 4, oversampling=2), inputs, fast_mode=n > 5)
    inputs = [*inputs[:4], w.requires_grad_()]
    assert torch.autograd.gradcheck(lambda *x: port_matmul(*x, oversampling=2), inputs, fast_mode=n > 5)


def test_gradients_are_those_of_the_definition() -> None:
    n, generator = 130, torch.Generator().manual_seed(3)
    inputs = [x.requires_grad_() for x in forgetful_ring(n, generator)]
    V, U = (torch.randn(2, n, generator=generator, dtype=torch.float64).requires_grad_() for _ in "VU")
    inputs += [V, U]
    weights = torch.randn(2, 2, n, generator=generator, dtype=torch.float64)
    got = torch.autograd.grad((port_rmatmul(*inputs, n) * weights).sum(), inputs)
    slow = torch.einsum("bn,rnk->brk", U, krylov(inputs[:3], V, n))
    want = torch.autograd.grad((slow * weights).sum(), inputs)
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-11 * float(y.abs().max()))


def test_what_is_refused() -> None:
    x, V = torch.ones(8), torch.ones(1, 8)
    with pytest.raises(ValueError, match="three vectors"):
        port_rmatmul(x[:7], x, x, V, V, 8)
    with pytest.raises(ValueError, match="share float32 or float64, got"):
        port_rmatmul(x, x, x, V, V.double(), 8)
    with pytest.raises(ValueError, match="k must be at least 1"):
        port_rmatmul(x, x, x, V, V, 0)
    with pytest.raises(ValueError, match="power of two"):
        port_rmatmul(x, x, x, V, V, 8, oversampling=3)
