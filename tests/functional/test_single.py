"""Prepared products for inference: closed rings, compiled on a CPU and by torch elsewhere."""

import pytest
import torch

from torchldr import HankelLike, LDRSubdiagonal, ToeplitzLike, testing
from torchldr.functional import closed_rings, compiled, single

needs_numba = pytest.mark.skipif(bool(compiled.why_not()), reason="numba is not installed")


@needs_numba
@pytest.mark.parametrize("cls", [LDRSubdiagonal, ToeplitzLike, HankelLike])
@pytest.mark.parametrize("regime", ["ones", "near one", "signs", "0.8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [64, 128, 256])
def test_powers_of_two(cls, regime, dtype, n):
    M = testing.member(cls, n, n, 2, regime=regime, dtype=dtype)
    testing.check_values(M, ())
    testing.check_values(M, (3,))


@needs_numba
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (96, 96), (129, 64), (64, 129)])
def test_other_shapes(shape):
    testing.check_values(testing.member(LDRSubdiagonal, *shape, 1, regime="near one"), (3,))


def test_serves_plain_vectors_without_gradients():
    assert single.serves(torch.randn(4, 64))
    assert not single.serves(torch.randn(1, 64, requires_grad=True))
    with torch.no_grad():
        assert single.serves(torch.randn(1, 64, requires_grad=True))


@needs_numba
def test_applies_to_powers_of_two_alone():
    def prepared(n, columns=None):
        left, right = ((torch.ones(k - 1), torch.tensor(0.5), torch.randn(2, k)) for k in (n, columns or n))
        return single.prepare(left, right, torch.float32)

    assert prepared(128) is not None
    assert prepared(96) is None
    assert prepared(32) is None
    assert prepared(128, 64) is None


@pytest.mark.parametrize("corners", [(0.0, 0.0), (0.7, -0.4), (1.0, -1.0), (-1.0, 1.0)])
@pytest.mark.parametrize("n", [1, 2, 7, 60, 63, 128])
@pytest.mark.parametrize("rank", [4, 9])
def test_closed_rings(n, rank, corners):
    if rank > n:
        rank = n
    M = testing.member(LDRSubdiagonal, n, n, rank, regime="near one")
    for name, corner in zip(("corner_A", "corner_C"), corners, strict=True):
        M.tensors[name].fill_(corner)
    prepared = closed_rings.prepare(M._side("A"), M._side("C"))
    assert (prepared is None) == (rank < 4)
    if prepared is not None:
        x = torch.randn(6, n, dtype=M.dtype)
        error = closed_rings.matmul(prepared, x) - x @ M.to_dense().mT
        size = x.abs() @ M.magnitude().mT
        assert error.abs().max() <= testing.tolerance(M.dtype, n) * size.max()


def test_a_plan_serves_vmap_and_autograd():
    product = LDRSubdiagonal.random(128, 128, 1, dtype=torch.float64).prepare()
    x = torch.randn(3, 128, dtype=torch.float64)
    together = product(x)
    assert torch.allclose(torch.vmap(lambda v: product(v.unsqueeze(0)).squeeze(0))(x), together)
    x.requires_grad_()
    product(x).sum().backward()
    assert x.grad is not None
