"""Fourier, cosine, Chebyshev and Legendre transforms: their definitions, products and displacement ranks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.fft
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import torchldr
from torchldr.algebra import convert
from torchldr.algebra.known import known_displacement
from torchldr.algebra.structure import displacement_of_dense
from torchldr.matrices.classical.base import ClassicalMatrix
from torchldr.matrices.classical.families import Vandermonde
from torchldr.matrices.classical.transforms import DCT2, DFT, Chebyshev, Legendre, OrthogonalPolynomials
from torchldr.operators import Diagonal, Shift, Tridiagonal


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def hermite(n: int, nodes: Tensor) -> OrthogonalPolynomials:
    """He_{i+1} = x He_i - i He_{i-1}, scaled by 1 / sqrt(i!) to stay of size one."""
    i = torch.arange(n, dtype=torch.float64)
    return OrthogonalPolynomials(
        torch.ones(n, dtype=torch.float64), 0 * i, -i, nodes, torch.exp(-torch.lgamma(i + 1) / 2)
    )


def random_recurrence(n: int, seed: int) -> OrthogonalPolynomials:
    a, b, c = 1 + drawn(seed, n).abs() / 2, drawn(seed + 1, n) / 2, -drawn(seed + 2, n).abs() / 4
    return OrthogonalPolynomials(a, b, c, drawn(seed + 3, 1 + seed % 30).tanh(), 1 + drawn(seed + 4, n).abs())


MAKERS: dict[str, Callable[[int, int], ClassicalMatrix]] = {
    "dft": lambda n, seed: DFT(n, orthonormal=bool(seed % 2)),
    "dct2": lambda n, seed: DCT2(n, orthonormal=bool(seed % 2)),
    "chebyshev": lambda n, seed: Chebyshev(n),
    "chebyshev scaled": lambda n, seed: Chebyshev(n, scale=(1 + drawn(seed, n).abs()).float()),
    "chebyshev scaled by complex numbers": lambda n, seed: Chebyshev(n, scale=1j + drawn(seed, n)),
    "chebyshev elsewhere": lambda n, seed: Chebyshev(n, drawn(seed, 1 + seed % 40).tanh()),
    "legendre": lambda n, seed: Legendre(n),
    "legendre elsewhere": lambda n, seed: Legendre(n, drawn(seed, 1 + seed % 40).tanh()),
    "hermite": lambda n, seed: hermite(min(n, 30), drawn(seed, n)),
    "random recurrence": lambda n, seed: random_recurrence(min(n, 20), seed),
}
sizes, seeds = st.integers(1, 150), st.integers(0, 2**20)


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=12, deadline=None)
@given(n=sizes, seed=seeds)
def test_products_are_those_of_the_dense_matrix(name: str, n: int, seed: int):
    M = MAKERS[name](n, seed)
    W = M.to_dense()
    x, y = drawn(seed, 2, M.in_features), drawn(seed, M.out_features)
    # At n = 150 the recurrence itself has amplified rounding errors of the nodes by about n.
    limit = 8 * (8 + max(M.shape)) * torch.finfo(torch.float64).eps * W.abs().max()
    assert W.shape == M.shape
    assert (M.matmul(x) - x.to(W.dtype) @ W.mT).abs().max() <= limit * x.abs().sum()
    assert (M.rmatmul(y) - y.to(W.dtype) @ W).abs().max() <= limit * y.abs().sum()
    z = torch.complex(x, 2 * x)
    assert (M.matmul(z) - z @ W.to(z.dtype).mT).abs().max() <= 3 * limit * x.abs().sum()


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=12, deadline=None)
@given(n=sizes, seed=seeds)
def test_the_displacement_rank_is_one(name: str, n: int, seed: int):
    """With respect to tridiagonal and diagonal operators, as the paper's proposition says."""
    M = MAKERS[name](n, seed)
    A, B, form = M.operators()
    assert form == "sylvester"
    W, A, B = M.to_dense(), A.to_dense().to(M.dtype), B.to_dense().to(M.dtype)
    D = A @ W - W @ B
    G, H = M.displacement_structure().generators()
    assert M.displacement_rank_bound == 1 == len(G) == len(H)
    # Rounding errors of the terms that cancel, entry by entry.
    noise = torch.finfo(torch.float64).eps * (A.abs() @ W.abs() + W.abs() @ B.abs())
    limit = 8 * (8 + max(M.shape)) * noise.max()
    assert (G.mT @ H - D).abs().max() <= limit
    assert bool((torch.linalg.svdvals(D)[1:] <= limit * max(M.shape)).all())


def test_without_a_device_matrices_are_on_the_default_one():
    with torch.device("meta"):  # the others look at values, which there are none of
        assert DFT(4).device.type == "meta"


def test_the_definitions_are_the_textbooks():
    i, x = np.arange(9)[:, None], drawn(0, 7).tanh().numpy()
    t = torch.from_numpy(x)
    np.testing.assert_allclose(Chebyshev(9, t).to_dense(), scipy.special.eval_chebyt(i, x), atol=1e-13)
    np.testing.assert_allclose(Legendre(9, t).to_dense(), scipy.special.eval_legendre(i, x), atol=1e-13)
    scale = np.sqrt(scipy.special.factorial(i))
    np.testing.assert_allclose(
        hermite(9, t).to_dense(), scipy.special.eval_hermitenorm(i, x) / scale, atol=1e-13
    )
    np.testing.assert_allclose(DFT(9).to_dense(), scipy.linalg.dft(9), atol=1e-13)
    np.testing.assert_allclose(2 * DCT2(9).to_dense(), scipy.fft.dct(np.eye(9), axis=0), atol=1e-13)
    wanted = scipy.fft.dct(np.eye(9), axis=0, norm="ortho")
    np.testing.assert_allclose(DCT2(9, orthonormal=True).to_dense(), wanted, atol=1e-13)


@pytest.mark.parametrize("n", [1, 2, 5, 64, 129])
def test_fourier_is_vandermonde_and_cosine_is_chebyshev(n: int):
    F = DFT(n)
    torch.testing.assert_close(F.to_dense(), Vandermonde(F.nodes).to_dense(), atol=1e-13 * n, rtol=0)
    torch.testing.assert_close(DCT2(n).to_dense(), Chebyshev(n).to_dense(), atol=1e-13 * n, rtol=0)
    zeros = torch.cos(torch.pi * (torch.arange(n, dtype=torch.float64) + 0.5) / n)
    torch.testing.assert_close(DCT2(n).nodes, zeros)


@pytest.mark.parametrize("n", [2, 5, 64])
def test_at_its_own_points_a_transform_has_rank_zero(n: int):
    """The Fourier matrix takes cyclic shifts to a diagonal; at the zeros of p_n so do the others with A."""
    F = DFT(n)
    D = displacement_of_dense(F.to_dense(), Diagonal(F.nodes), Shift(n, 1.0), "sylvester")
    assert D.abs().max() <= 1e-14 * n
    for M in (Chebyshev(n), Legendre(n), DCT2(n, orthonormal=True)):
        A, B, _ = M.operators()
        assert isinstance(A, Tridiagonal)
        assert displacement_of_dense(M.to_dense(), A, B, "sylvester").abs().max() <= 1e-13 * n


@settings(max_examples=12, deadline=None)
@given(m=st.integers(1, 40), n=st.integers(1, 40), seed=seeds)
def test_acdc_has_rank_two_with_tridiagonal_operators(m: int, n: int, seed: int):
    M = torchldr.ACDC.random(m, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    M.A.mul_(1 + drawn(seed, m).abs())
    (A, B, form), bound = known_displacement(M)
    assert isinstance(A, Tridiagonal)
    assert isinstance(B, Tridiagonal)
    assert bound <= (2 if m == n else 3)
    D = displacement_of_dense(M.to_dense(), A, B, form)
    scale = float(torch.linalg.matrix_norm(A.to_dense(), 2) + 1) * float(
        torch.linalg.matrix_norm(M.to_dense(), 2)
    )
    assert bool((torch.linalg.svdvals(D)[bound:] <= 1e-14 * max(m, n) * scale).all())


@pytest.mark.parametrize("name", ["dft", "dct2", "chebyshev"])
@pytest.mark.parametrize(("n", "seed"), [(1, 0), (2, 1), (7, 0), (300, 1)])
def test_transforms_are_solved_by_transforms(name: str, n: int, seed: int):
    M = MAKERS[name](n, seed)
    b = drawn(seed, n)
    assert torchldr.linalg.solvers(M)[0] == ("fft" if name == "dft" else "cosine transform")
    for map in (M, M.T):
        x = map.solve(b)
        torch.testing.assert_close(map.to_dense() @ x, b.to(x.dtype))


def test_products_are_differentiable():
    a, nodes, x = 1 + drawn(0, 4).abs(), drawn(1, 3), drawn(2, 3)
    b, c, y = drawn(3, 4), drawn(4, 4), drawn(5, 4)
    inputs = tuple(t.requires_grad_() for t in (a, b, c, nodes, x, y))
    assert torch.autograd.gradcheck(
        lambda a, b, c, v, x, y: OrthogonalPolynomials(a, b, c, v).matmul(x), inputs
    )
    assert torch.autograd.gradcheck(
        lambda a, b, c, v, x, y: OrthogonalPolynomials(a, b, c, v).rmatmul(y), inputs
    )


@pytest.mark.parametrize("name", ["dct2", "chebyshev"])
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")  # torch, of constants that it folds
def test_linearized_products(name: str):
    """Where torch folds constants, it forgets edits of them in place."""
    M, x = MAKERS[name](6, 1), drawn(0, 3, 6)
    for product, dense in ((M.matmul, M.to_dense().mT), (M.rmatmul, M.to_dense())):
        torch.testing.assert_close(torch.func.linearize(product, x)[1](x), x @ dense)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: DFT(0), ValueError, "DFT: n must be"),
        *(
            (lambda cls=cls: cls(0), ValueError, "n must be at least 1")
            for cls in (DFT, DCT2, Chebyshev, Legendre)
        ),
        (lambda: DCT2(2.5), TypeError, "DCT2: n must be an int"),
        (lambda: DFT(4, dtype="complex64"), TypeError, "dtype must be complex, got 'complex64'"),
        (lambda: DFT(4, dtype=torch.float64), TypeError, "dtype must be complex"),
        (
            lambda: OrthogonalPolynomials(torch.ones(3), torch.ones(2), torch.ones(3), torch.ones(5)),
            ValueError,
            "b must have the shape",
        ),
        (
            lambda: OrthogonalPolynomials(torch.arange(3.0), torch.ones(3), torch.ones(3), torch.ones(5)),
            ValueError,
            r"no entry of a may be 0, but a\[0\] is",
        ),
        (lambda: convert(DCT2(4), "ldr_td"), TypeError, "no member of 'ldr_td' is known to be a DCT2"),
        (
            lambda: known_displacement(torchldr.ACDC(2, 2, A=torch.zeros(2), D=torch.ones(2))),
            ValueError,
            r"A\[0\] is 0",
        ),
    ],
)
def test_errors_say_what_is_wrong(make, error, message: str):
    with pytest.raises(error, match=message):
        make()
