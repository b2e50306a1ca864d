"""Products with two subdiagonal operators in C: values and gradients against the definition in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchldr import testing
from torchldr.kernels.cpu import convolution, library

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))
DTYPES = [torch.float32, torch.float64]


def operators(
    lead: tuple[int, ...], r: int, m: int, n: int, dtype: torch.dtype, seed: int = 0, scale: float = 1.0
) -> list[Tensor]:
    """G, H, corner_a, lower_a, corner_c, lower_c near one, A times `scale` and C over it."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*lead, *shape, generator=draw, dtype=torch.float64)

    spread = 0.3 / max(m, n) ** 0.5
    lower_a, lower_c = (1 + spread * normal(m - 1)) * scale, (1 + spread * normal(n - 1)) / scale
    given = normal(r, m), normal(r, n), normal(1) * scale, lower_a, normal(1) / scale, lower_c
    return [t.to(dtype) for t in given]


def definition(
    G: Tensor, H: Tensor, corner_a: Tensor, lower_a: Tensor, corner_c: Tensor, lower_c: Tensor, x: Tensor
) -> Tensor:
    """x M^T for M = sum_t A^t G^T H (C^t)^T, term by term."""
    left, right, M = G, H, 0.0
    for _ in range(min(G.shape[-1], H.shape[-1])):
        M = M + left.mT @ right
        left = torch.cat(
            (corner_a.unsqueeze(-1) * left[..., -1:], lower_a.unsqueeze(-2) * left[..., :-1]), -1
        )
        right = torch.cat(
            (corner_c.unsqueeze(-1) * right[..., -1:], lower_c.unsqueeze(-2) * right[..., :-1]), -1
        )
    return x @ M.mT


def prepared(of: list[Tensor]) -> tuple[Tensor, ...]:
    G, H, corner_a, lower_a, corner_c, lower_c = of
    m, n = G.shape[-1], H.shape[-1]
    *profiles, _, _ = convolution.profiles(corner_a, lower_a, corner_c, lower_c, m, n)
    A, C = (t.to(G.dtype) for t in profiles)
    return A, C, convolution.hats(G, A, min(m, n), max(m, n)), convolution.hats(H, C, min(m, n), max(m, n))


def compare(of: list[Tensor], x: Tensor, u: Tensor) -> None:
    """Values and all gradients, relative to the same of absolute values."""
    K = prepared(of)
    y, saved = convolution.forward(*K, x)
    assert torch.equal(convolution.product(*K, x), y)
    found = convolution.backward(u, x, *K, saved, *of)
    A, C, left, right = K
    assert torch.allclose(convolution.product(C, A, right, left, u), found[0], rtol=0, atol=0)
    exact = [t.double().requires_grad_() for t in (x, *of)]
    wanted = definition(*exact[1:], exact[0])
    sizes = [t.double().abs().requires_grad_() for t in (x, *of)]
    size = definition(*sizes[1:], sizes[0])
    settings = {"allow_unused": True, "materialize_grads": True}
    wanted_gradients = torch.autograd.grad(wanted, exact, u.double(), **settings)
    gradient_sizes = torch.autograd.grad(size, sizes, u.double().abs(), **settings)
    bound = 8 * testing.tolerance(x.dtype, max(x.shape[-1], u.shape[-1]))
    assert (y - wanted).abs().max() <= bound * size.max()
    largest = max(t.max() for t in gradient_sizes if t.numel())
    for got, right_one in zip(found, wanted_gradients, strict=True):
        assert got is not None
        assert got.shape == right_one.shape
        assert got.numel() == 0 or (got - right_one).abs().max() <= bound * largest


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_values_and_gradients(data: st.DataObject) -> None:
    m, n = (data.draw(st.sampled_from([1, 2, 3, 5, 16, 31, 64, 100, 129])) for _ in range(2))
    r, b = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 2, 7]))
    lead = data.draw(st.sampled_from([(), (1,), (3,)]))
    dtype, seed = data.draw(st.sampled_from(DTYPES)), data.draw(st.integers(0, 99))
    draw = torch.Generator().manual_seed(seed)
    x, u = (torch.randn(*lead, b, size, generator=draw, dtype=torch.float64).to(dtype) for size in (n, m))
    compare(operators(lead, r, m, n, dtype, seed), x, u)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "scale"), [(64, 4.0), (128, 1 / 3), (256, 1.5)])
def test_a_common_scale_of_both_operators_costs_nothing(n: int, scale: float, dtype: torch.dtype) -> None:
    x, u = torch.randn(2, 3, n, dtype=dtype)
    of = operators((), 2, n, n, dtype, scale=scale)
    ranges, factor = convolution.profiles(of[2], of[3], of[4], of[5], n, n)[2:]
    assert ranges.item() < 100
    assert factor.item() == pytest.approx(1 / scale, rel=0.05)
    compare(of, x, u)


@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize("lead", [(), (2,), (7,)])
def test_threads_share_the_rows(lead: tuple[int, ...], threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    of = operators(lead, 1, 90, 70, torch.float64)
    x, u = torch.randn(*lead, 5, 70, dtype=torch.float64), torch.randn(*lead, 5, 90, dtype=torch.float64)
    K = prepared(of)
    alone = convolution.forward(*K, x)
    gradients = convolution.backward(u, x, *K, alone[1], *of)
    monkeypatch.setattr("torchldr.kernels.cpu.threads.WORTHWHILE", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    together = convolution.forward(*K, x)
    assert torch.equal(together[0], alone[0])
    for got, right in zip(convolution.backward(u, x, *K, together[1], *of), gradients, strict=True):
        assert torch.allclose(got, right, rtol=1e-12, atol=1e-12 * right.abs().max().item())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n"), [(20, 20), (33, 8)])
def test_shifts_have_constant_operators(m: int, n: int, dtype: torch.dtype) -> None:
    """As of Toeplitz-like matrices: no subdiagonal is given and no gradient of the corner."""
    G, H = torch.randn(2, m, dtype=dtype), torch.randn(2, n, dtype=dtype)
    corners = torch.ones(1, dtype=dtype), -torch.ones(1, dtype=dtype)
    A, C, _, _ = convolution.profiles(corners[0], None, corners[1], None, m, n)
    A, C, sizes = A.to(dtype), C.to(dtype), (min(m, n), max(m, n))
    K = A, C, convolution.hats(G, A, *sizes), convolution.hats(H, C, *sizes)
    x, u = torch.randn(4, n, dtype=dtype), torch.randn(4, m, dtype=dtype)
    y, saved = convolution.forward(*K, x)
    dx, dG, dH, *rest = convolution.backward(u, x, *K, saved, G, H)
    assert rest == [None] * 4
    leaves = [t.double().requires_grad_() for t in (x, G, H)]
    ones = [torch.ones(size - 1, dtype=torch.float64) for size in (m, n)]
    parts = corners[0].double(), ones[0], corners[1].double(), ones[1]
    right = definition(leaves[1], leaves[2], *parts, leaves[0])
    bound = 8 * testing.tolerance(dtype, max(m, n)) * 4 * max(m, n)
    assert (y - right).abs().max() <= bound
    for got, wanted in zip((dx, dG, dH), torch.autograd.grad(right, leaves, u.double()), strict=True):
        assert (got - wanted).abs().max() <= bound * wanted.abs().max()


@pytest.mark.parametrize("entry", [0.0, torch.nan, torch.inf])
def test_ranges_of_operators_that_cannot_be_divided(entry: float) -> None:
    _, _, corner_a, lower_a, corner_c, lower_c = operators((2,), 1, 9, 9, torch.float32)
    lower_a[1, 4] = entry
    ranges = convolution.profiles(corner_a, lower_a, corner_c, lower_c, 9, 9)[2]
    assert ranges[0] < 1e3
    assert not ranges[1].isfinite()


def test_ranges_are_those_of_the_products() -> None:
    _, _, corner_a, lower_a, corner_c, lower_c = operators((), 1, 30, 40, torch.float64)
    A, C, reach, factor = convolution.profiles(corner_a, lower_a, corner_c, lower_c, 30, 40)
    right = 1.0
    for found, lower, corner, f in ((A, lower_a, corner_a, factor), (C, lower_c, corner_c, 1 / factor)):
        P = torch.cat((torch.ones(1), lower * f)).cumprod(0)
        assert torch.allclose(found[:-2], P)
        assert torch.allclose(found[-2:], torch.stack((corner[0] * f * P[-1], f * P[-1])))
        right *= float(P.abs().max() / P.abs().min() * found[-2].abs().clamp(min=1))
    assert reach.item() == pytest.approx(right)


def test_no_rows() -> None:
    of = operators((), 1, 8, 6, torch.float32)
    K = prepared(of)
    y, saved = convolution.forward(*K, torch.empty(0, 6))
    assert y.shape == (0, 8)
    found = convolution.backward(torch.empty(0, 8), torch.empty(0, 6), *K, saved, *of)
    assert all(t.count_nonzero() == 0 for t in found if t is not None)
