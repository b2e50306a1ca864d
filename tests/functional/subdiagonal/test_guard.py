"""The guard of LDR-SD's convolutions, attacked by operators that oppose each other."""

import pytest
import torch

from torchldr import LDRSubdiagonal, testing
from torchldr.functional.subdiagonal.guard import guard


def opposing(s, n, dtype=torch.float64, G=None, H=None):
    """The matrix whose second operator undoes the first: with G = H = e_0 it is the identity."""
    unit = torch.zeros(1, n, dtype=dtype)
    unit[0, 0] = 1
    corner = torch.zeros((), dtype=dtype)
    s = s.to(dtype)
    tensors = {"G": unit if G is None else G, "H": unit.clone() if H is None else H}
    return LDRSubdiagonal(
        n, n, **tensors, subdiagonal_A=s, subdiagonal_C=1 / s, corner_A=corner, corner_C=corner.clone()
    )


def test_the_identity_of_opposing_operators():
    n = 1000
    s = torch.exp(0.1 * torch.sin(2 * torch.pi * torch.arange(1, n, dtype=torch.float64) / n))
    for dtype in (torch.float64, torch.float32):
        M = opposing(s, n, dtype)
        x = torch.randn(2, n, dtype=dtype)
        # M as rounded to the dtype is the identity up to the rounding of n factors.
        bound = 2 * n * torch.finfo(dtype).eps * x.abs().max()
        for y in (M.matmul(x), M.rmatmul(x)):
            assert (y - x).abs().max() <= bound


def profiles(n):
    t = torch.arange(1, n, dtype=torch.float64)
    g = torch.Generator().manual_seed(0)
    normal = torch.randn(n - 1, dtype=torch.float64, generator=g)
    for size in (2e-2, 0.2, 0.8):
        factor = (1 + size / 2) ** 2
        yield f"step {size}", torch.where(t < n / 2, factor, 1 / factor)
        yield f"sine {size}", torch.exp(size * torch.sin(2 * torch.pi * t / n))
        yield f"fast sine {size}", torch.exp(size * torch.sin(40 * torch.pi * t / n))
        yield f"walk {size}", torch.exp(size * normal)
        yield f"alternating {size}", torch.exp(size * (-1) ** t)
        yield f"growing {size}", torch.full_like(t, factor)
        yield f"signs {size}", factor * normal.sign()
    for size in (1e2, 1e4, 1e8):
        yield f"spike {size}", torch.where(t == n // 2, size, 1.0)


def check_gradients(M):
    """Gradients by both products, with errors relative to the whole gradient: parts may be zero."""
    towards, x = torch.randn(2, 2, M.in_features, dtype=M.dtype)

    def gradients(N, towards, product):
        leaves = [t.detach().clone().requires_grad_() for t in N.tensors.values()]
        N = N.with_tensors(dict(zip(N.tensors, leaves, strict=True)))
        return torch.autograd.grad(product(N), leaves, towards.to(N.dtype), allow_unused=True)

    exact = gradients(M.double(), towards, lambda N: x.double() @ N.to_dense().mT)
    positive = M.double().with_tensors({name: t.abs() for name, t in M.double().tensors.items()})
    sizes = gradients(positive, towards.abs(), lambda N: x.double().abs() @ N.to_dense().mT)
    size = max(g.max() for g in sizes)
    for name in testing.forced(M):
        found = gradients(M, towards, lambda N, name=name: N.matmul(x, product=name))
        for a, b in zip(found, exact, strict=True):
            assert (a - b).abs().max() <= testing.tolerance(M.dtype, M.in_features) * size


SIZE = 64
PROFILES = dict(profiles(SIZE))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("profile", PROFILES)
def test_both_products_meet_its_bound_for_every_profile(profile, dtype):
    g = torch.Generator().manual_seed(1)
    dense = torch.randn(2, 2, SIZE, dtype=torch.float64, generator=g).to(dtype)
    sparse = dense * (torch.rand(2, 2, SIZE, generator=g) < 0.04)
    for G, H in ((None, None), (dense[0, :1], sparse[1, :1]), (None, dense[0, :1])):
        M = opposing(PROFILES[profile], SIZE, dtype, G, H)
        testing.check_values(M, (2,))
        check_gradients(M)


def test_only_the_product_of_both_ranges_counts():
    flat, steep, M = torch.ones(63), torch.full((63,), 1.05), LDRSubdiagonal.random(64, 64, 1)
    for name in ("corner_A", "corner_C"):
        M.tensors[name].zero_()

    def found(**tensors):
        given = {**M.tensors, "subdiagonal_A": flat, "subdiagonal_C": flat, **tensors}
        return guard(*M.with_tensors(given)._sides())

    assert found() == torch.float32
    assert found(subdiagonal_A=steep) == torch.float32
    assert found(subdiagonal_A=steep, subdiagonal_C=steep) == torch.float64
    assert "range over a factor of" in found(subdiagonal_A=torch.full((63,), 1.5))
    assert "over all bounds" in found(subdiagonal_C=torch.where(torch.arange(63) == 9, 0.0, 1.0))
    assert "range over a factor of" in found(corner_A=torch.tensor(1e12))
