"""Toeplitz systems and products, and the Fourier matrix, on the cases that SciPy holds its own to."""

import warnings

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy import linalg

from torchldr import Circulant, Toeplitz, solve
from torchldr.matrices.classical import DFT, Hankel

DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]


def vector(*shape: int, seed: int = 0, imaginary: bool = False) -> np.ndarray:
    draw = np.random.default_rng(seed)
    real = draw.normal(size=shape)
    return real + 1j * draw.normal(size=shape) if imaginary else real


def ours(column: np.ndarray, row: np.ndarray | None = None) -> Toeplitz:
    return Toeplitz(torch.from_numpy(column), None if row is None else torch.from_numpy(row))


# Systems.


@pytest.mark.parametrize("n", [1, 2, 3, 10])
@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize("row", [False, True, None])
@pytest.mark.parametrize("right", [False, True])
def test_systems(n, column, row, right):
    """Real and complex ones; without a row the matrix is symmetric, or Hermitian."""
    c, b = vector(n, imaginary=column), vector(n, seed=2, imaginary=right)
    r = None if row is None else vector(n, seed=1, imaginary=row)
    if r is None:
        c[0] = c[0].real + 3
    T = ours(c, r)
    assert_allclose(T.to_dense(), linalg.toeplitz(c, r))
    wanted = linalg.solve_toeplitz(c if r is None else (c, r), b)
    x = solve(T, torch.from_numpy(b))
    assert_allclose(x, wanted, rtol=1e-6, atol=1e-9)
    assert_allclose(linalg.toeplitz(c, r) @ x.numpy(), b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(4,), (4, 3), (2, 4, 3), (2, 0, 4, 3), (4, 0)])
@pytest.mark.parametrize("imaginary", [False, True])
def test_many_right_hand_sides(shape, imaginary):
    c, r, b = vector(4), vector(4, seed=1), vector(*shape, seed=2, imaginary=imaginary)
    x = solve(ours(c, r), torch.from_numpy(b))
    assert x.shape == shape
    assert_allclose(x, np.linalg.solve(linalg.toeplitz(c, r), b if b.ndim > 1 else b[:, None]).reshape(shape))


@pytest.mark.parametrize("column", [[0.0, 1.3, -0.4, 2.0], [2.0, 2.0, 1.0]])
def test_systems_that_stop_levinson(column):
    """A zero on the diagonal, or a singular leading part, where SciPy gives up and pivots help."""
    c, b = np.array(column), vector(len(column))
    with pytest.raises(np.linalg.LinAlgError):
        linalg.solve_toeplitz(c, b)
    assert_allclose(solve(ours(c), torch.from_numpy(b)), np.linalg.solve(linalg.toeplitz(c), b))


def test_a_system_that_levinson_loses():
    """A Gaussian on the diagonals; SciPy's own test of it is expected to fail."""
    c, b = 0.9 ** (np.arange(100.0) ** 2), vector(100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = solve(ours(c), torch.from_numpy(b))
    assert_allclose(x, np.linalg.solve(linalg.toeplitz(c), b), rtol=1e-3)


@pytest.mark.parametrize("of_matrix", DTYPES, ids=str)
@pytest.mark.parametrize("of_right", DTYPES, ids=str)
def test_empty_systems(of_matrix, of_right):
    T, other = Toeplitz(torch.empty(0, dtype=of_matrix)), Toeplitz(torch.tensor([2, 1], dtype=of_matrix))
    assert T.shape == (0, 0)
    wanted = solve(other, torch.ones(2, dtype=of_right)).dtype
    for shape in ((0,), (0, 0), (0, 3), (2, 0, 3)):
        x = solve(T, torch.empty(shape, dtype=of_right))
        assert (x.shape, x.dtype) == (shape, wanted)
        assert T.solve(torch.empty(shape, dtype=of_right)).shape == shape


# Products.


@pytest.mark.parametrize(
    ("m", "n", "columns"), [(1, 1, 1), (2, 2, 1), (101, 101, 1), (100, 100, 7), (101, 74, 1), (100, 25, 3)]
)
@pytest.mark.parametrize("imaginary", [False, True])
def test_products(m, n, columns, imaginary):
    c, r = vector(m, imaginary=imaginary), vector(n, seed=1, imaginary=imaginary)
    x = vector(n, columns, seed=2, imaginary=imaginary)
    y = ours(c, r) @ torch.from_numpy(x)
    assert_allclose(y, linalg.matmul_toeplitz((c, r), x), rtol=1e-12, atol=1e-12)
    assert_allclose(ours(c, r) @ torch.from_numpy(x[:, 0]), y[:, 0], rtol=1e-12, atol=1e-12)


def test_a_product_with_the_column_alone():
    c, x = vector(100), vector(100, 3, seed=1)
    assert_allclose(ours(c) @ torch.from_numpy(x), linalg.matmul_toeplitz(c, x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("m", "n"), [(0, 0), (0, 3), (3, 0)])
def test_empty_products(m, n):
    c, r = torch.randn(m, dtype=torch.float64), torch.randn(n, dtype=torch.float64)
    for T, dense in ((Toeplitz(c, r), linalg.toeplitz(c, r)), (Hankel(c, r), linalg.hankel(c, r))):
        assert T.shape == T.to_dense().shape == dense.shape
        for shape in ((n,), (n, 4), (n, 0), (2, n, 4)):
            x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
            y = T @ x
            assert_allclose(y.detach(), dense @ x.detach().numpy())
            assert torch.autograd.grad(y.sum(), x)[0].shape == shape
        assert_allclose(T.rmatmul(torch.ones(5, m, dtype=torch.float64)), np.ones((5, m)) @ dense)
        assert_allclose(T.T.to_dense(), dense.T)
    assert torch.equal(Toeplitz(c, r).column, c)
    assert torch.equal(Hankel(c, r).last_row, r)


@pytest.mark.parametrize(("m", "n", "length"), [(4, 8, 4), (4, 4, 3), (4, 2, 1)])
def test_sizes_that_do_not_fit(m, n, length):
    with pytest.raises(ValueError, match="in_features"):
        ours(vector(m), vector(n, seed=1)) @ torch.randn(length, dtype=torch.float64)


def test_vectors_that_are_none():
    for given in (torch.ones(2, 2), torch.tensor(1.0)):
        with pytest.raises(ValueError, match="must be a vector"):
            Toeplitz(given)


# Special matrices.


@pytest.mark.parametrize("scale", [None, "sqrtn", "n"])
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_the_fourier_matrix(scale, n):
    M, F = DFT(n, scale=scale), linalg.dft(n, scale=scale)
    assert_allclose(M.to_dense(), F, atol=1e-14)
    x = torch.from_numpy(vector(2, 3, n, imaginary=True))
    assert_allclose(M.matmul(x), x.numpy() @ F.T, atol=1e-13)
    assert_allclose(M.rmatmul(x), x.numpy() @ F, atol=1e-13)
    assert_allclose(M.solve(M @ x.mT), x.mT, atol=1e-13)
    assert M.matmul(x[:0]).shape == (0, 3, n)


def test_scales_of_the_fourier_matrix():
    assert torch.equal(DFT(4, orthonormal=True).to_dense(), DFT(4, scale="sqrtn").to_dense())
    with pytest.raises(ValueError, match="scale must be None, 'sqrtn' or 'n', got 'm'"):
        DFT(4, scale="m")
    with pytest.raises(ValueError, match="orthonormal"):
        DFT(4, orthonormal=True, scale="n")


@pytest.mark.parametrize("make", [Circulant.from_column, Toeplitz, DFT], ids=["circulant", "toeplitz", "dft"])
def test_leading_axes_of_vectors(make):
    M = make(6) if make is DFT else make(torch.from_numpy(vector(6)) + 3)
    dtype = torch.complex128 if make is DFT else torch.float64
    x = torch.randn(2, 3, 6, 4, dtype=dtype)
    assert_allclose(M @ x, M.to_dense() @ x, atol=1e-12)
    assert_allclose(M.solve(M @ x), x, atol=1e-9)
