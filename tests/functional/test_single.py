"""Prepared products for inference: the compiled one for single vectors, closed rings for high ranks."""

import numpy as np
import pytest
import torch

from torchldr import HankelLike, LDRSubdiagonal, ToeplitzLike, testing
from torchldr.functional import closed_rings, single, stencil

needs_numba = pytest.mark.skipif(bool(stencil.unavailable()), reason="numba is not installed")


@needs_numba
@pytest.mark.parametrize("n", [2, 4, 8, 64, 512])
def test_transforms_are_inverse_and_diagonalise_convolutions(n):
    forward, backward = single._forward, single._backward
    rng = np.random.default_rng(0)
    halves = [1 << i for i in range(n.bit_length() - 1)]
    turns = np.concatenate([np.ones(1), *(np.exp(-1j * np.pi / h * np.arange(h)) for h in halves)])
    x, y = rng.standard_normal((2, n)) + 1j * rng.standard_normal((2, n))
    spectra = x.copy(), y.copy()
    for spectrum in spectra:
        forward(spectrum, turns)
    bits = n.bit_length() - 1
    reversed_order = [int(format(i, f"0{bits}b")[::-1], 2) for i in range(n)]
    assert np.allclose(spectra[0][reversed_order], np.fft.fft(x))
    product = spectra[0] * spectra[1]
    backward(product, turns.conj())
    assert np.allclose(product / n, np.fft.ifft(np.fft.fft(x) * np.fft.fft(y)))


@needs_numba
@pytest.mark.parametrize("cls", [LDRSubdiagonal, ToeplitzLike, HankelLike])
@pytest.mark.parametrize("regime", ["ones", "near one", "signs", "0.8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [64, 128, 256])
def test_single_vectors(cls, regime, dtype, n):
    M = testing.member(cls, n, n, 2, regime=regime, dtype=dtype)
    testing.check_values(M, ())
    testing.check_values(M, (3,))


def test_single_serves_few_plain_vectors():
    assert single.serves(torch.randn(4, 64))
    assert not single.serves(torch.randn(5, 64))
    assert not single.serves(torch.randn(1, 64, requires_grad=True))


@needs_numba
def test_single_applies_to_powers_of_two_alone():
    def prepared(n, rank=1):
        P, f, V = torch.ones(n), torch.tensor(0.5), torch.randn(rank, n)
        return single.prepare(P, f, V, P, f, V)

    assert prepared(128) is not None
    assert prepared(96) is None
    assert prepared(32) is None
    assert prepared(128, rank=5) is None


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
    testing.check_values(M, (6,))


def test_a_plan_serves_vmap_and_autograd():
    product = LDRSubdiagonal.random(128, 128, 1, dtype=torch.float64).prepare()
    x = torch.randn(3, 128, dtype=torch.float64)
    together = product(x)
    assert torch.allclose(torch.vmap(lambda v: product(v.unsqueeze(0)).squeeze(0))(x), together)
    x.requires_grad_()
    product(x).sum().backward()
    assert x.grad is not None
