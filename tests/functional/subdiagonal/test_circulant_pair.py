"""Circulant pairs, prepared for inference: by torch, and compiled on a CPU."""

import gc
import weakref

import pytest
import torch
from torchldr.matrices.ldr_sd.routes import sides

from torchldr import HankelLike, LDRSubdiagonal, StructuredLinear, ToeplitzLike, testing
from torchldr.functional.subdiagonal import circulant_pair, compiled_pair
from torchldr.kernels.cpu import library

needs_library = pytest.mark.skipif(bool(library.why_not()), reason=str(library.why_not()))


@needs_library
@pytest.mark.parametrize("cls", [LDRSubdiagonal, ToeplitzLike, HankelLike])
@pytest.mark.parametrize("regime", ["ones", "near one", "signs", "0.8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [64, 256])
def test_powers_of_two(cls, regime, dtype, n):
    M = testing.member(cls, n, n, 2, regime=regime, dtype=dtype)
    testing.check_values(M, ())
    testing.check_values(M, (3,))


@needs_library
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (96, 96), (129, 64), (64, 129)])
def test_other_shapes(shape):
    testing.check_values(testing.member(LDRSubdiagonal, *shape, 1, regime="near one"), (3,))


@needs_library
def test_compiled_for_powers_of_two_alone():
    def why_not(n, columns=None):
        left, right = ((torch.ones(k - 1), torch.tensor(0.5), torch.randn(2, k)) for k in (n, columns or n))
        return compiled_pair.why_not(left, right)

    assert why_not(128) is None
    for sizes in ((96,), (32,), (128, 64)):
        assert "power of two" in why_not(*sizes)


@pytest.mark.parametrize("corners", [(0.0, 0.0), (0.7, -0.4), (1.0, -1.0), (-1.0, 1.0)])
@pytest.mark.parametrize("n", [1, 2, 7, 60, 63, 128])
@pytest.mark.parametrize("rank", [1, 9])
def test_circulant_pair(n, rank, corners):
    if rank > n:
        rank = n
    M = testing.member(LDRSubdiagonal, n, n, rank, regime="near one")
    for name, corner in zip(("corner_A", "corner_C"), corners, strict=True):
        M.tensors[name].fill_(corner)
    prepared = circulant_pair.prepare(*sides(M), M.dtype)
    x = torch.randn(6, n, dtype=M.dtype)
    error = circulant_pair.matmul(prepared, x) - x @ M.to_dense().mT
    size = x.abs() @ M.magnitude().mT
    assert error.abs().max() <= testing.tolerance(M.dtype, n) * size.max()


def test_a_plan_serves_vmap_and_autograd():
    layer = StructuredLinear(128, 128, dtype=torch.float64).requires_grad_(False).eval()
    x = torch.randn(3, 128, dtype=torch.float64)
    together = layer(x)
    assert torch.allclose(torch.vmap(layer)(x), together)
    x.requires_grad_()
    layer(x).sum().backward()
    assert torch.allclose(x.grad, layer.weight.sum(0).expand_as(x))


def test_a_plan_serves_inside_vmap():
    """Which makes none itself: what is computed there belongs to it."""
    layer = StructuredLinear(60, 60, product="convolution", dtype=torch.float64).requires_grad_(False).eval()
    layer.route = "circulant_pair"
    x = torch.randn(3, 60, dtype=torch.float64)
    with pytest.raises(ValueError, match="for matrices that are kept"):
        torch.vmap(layer)(x)
    layer(x)
    assert torch.allclose(torch.vmap(layer)(x), x @ layer.matrix().to_dense().mT + layer.bias)


def test_corners_with_an_axis():
    A, C = sides(testing.member(LDRSubdiagonal, 6, 6, 2, regime="near one"))
    corners = (side[1].reshape(1).requires_grad_() for side in (A, C))
    with_axis = [(side[0], corner, side[2]) for side, corner in zip((A, C), corners, strict=True)]
    found = circulant_pair.generators(*with_axis, 1.0, -1.0)
    assert all(map(torch.equal, found, circulant_pair.generators(A, C, 1.0, -1.0)))
    found[1].sum().backward()
    assert with_axis[0][1].grad.shape == (1,)


@pytest.mark.parametrize("ends", [(1.0, -1.0), (-1.0, -0.5)])
@pytest.mark.parametrize(("n", "rank"), [(1, 1), (2, 1), (5, 2)])
def test_gradients_of_the_generators(n, rank, ends):
    draw = torch.Generator().manual_seed(0)
    sizes = (n - 1,), (), (rank, n)
    given = [torch.randn(size, generator=draw, dtype=torch.float64) for size in sizes * 2]
    given[0], given[3] = 1 + 0.3 * given[0], 1 + 0.3 * given[3]
    given = [t.requires_grad_() for t in given]

    def of(*tensors):
        return circulant_pair.generators(tensors[:3], tensors[3:], *ends)

    assert torch.autograd.gradcheck(of, given)
    assert torch.autograd.gradgradcheck(of, given)


def test_what_gradients_need_goes_with_them():
    """No circle of references, which would hold it until Python looks for circles."""
    side = torch.ones(7).requires_grad_(), torch.zeros(()), torch.ones(2, 8)
    P, made = circulant_pair.generators(side, side, -1.0, -0.5)
    held = weakref.ref(P)
    gc.disable()
    try:
        del P, made
        assert held() is None
    finally:
        gc.enable()
