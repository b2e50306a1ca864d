"""Condition estimates, and structured matrices as SciPy's operators."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torchldr


def member(name: str, n: int, seed: int = 0, dtype: torch.dtype = torch.float64):
    cls, generator = torchldr.get_structure(name), torch.Generator().manual_seed(seed)
    options = {"rank": min(2, n)} if cls.ranked else {}
    return cls.random(n, n, dtype=dtype, generator=generator, **options)


@given(
    name=st.sampled_from([name for name in torchldr.structures() if name not in ("low_rank", "blast")]),
    n=st.integers(1, 30),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=60)
def test_estimates_are_just_below_the_condition_number(name, n, seed):
    M = member(name, n, seed)
    exact = float(torch.linalg.cond(M.to_dense()))
    found = torchldr.linalg.condition_estimate(M)
    if exact < 1e12:
        assert 0.3 * exact <= found <= exact * (1 + 1e-13 * exact + 1e-8)
    else:
        assert found > 1e11


def test_estimates_by_elimination_on_generators():
    for M in (member("toeplitz_like", 256), member("cauchy_like", 256), member("hankel_like", 256).T):
        exact = float(torch.linalg.cond(M.to_dense()))
        assert 0.5 * exact <= torchldr.linalg.condition_estimate(M) <= exact * (1 + 1e-6)


def test_a_singular_matrix_has_an_infinite_condition_number():
    assert torchldr.linalg.condition_estimate(member("low_rank", 8)) == torch.inf
    assert torchldr.linalg.condition_estimate(torchldr.Toeplitz(torch.ones(300))) == torch.inf


def test_only_square_matrices_have_one():
    with pytest.raises(ValueError, match="must be square, got Circulant of 3 x 4"):
        torchldr.linalg.condition_estimate(torchldr.Circulant.random(3, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", torchldr.structures())
def test_scipy_multiplies_as_the_dense_matrix_does(name, dtype):
    cls = torchldr.get_structure(name)
    M = cls.random(7, 5, dtype=dtype, **({"rank": 2} if cls.ranked else {}))
    A, D = M.as_scipy(), M.to_dense().numpy()
    assert A.shape == (7, 5)
    assert A.dtype == D.dtype
    close = {"rtol": 0, "atol": 200 * np.finfo(D.dtype).eps * float(M.magnitude().sum())}
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((5, 3)).astype(D.dtype), rng.standard_normal((7, 3)).astype(D.dtype)
    np.testing.assert_allclose(A @ x, D @ x, **close)
    np.testing.assert_allclose(A @ x[:, 0], D @ x[:, 0], **close)
    np.testing.assert_allclose(A @ x[:, :1], D @ x[:, :1], **close)
    np.testing.assert_allclose(A.H @ y, D.T @ y, **close)
    np.testing.assert_allclose(A.rmatvec(y[:, 0]), D.T @ y[:, 0], **close)


def test_scipy_with_reversed_vectors_and_with_bfloat16():
    """Neither has a tensor or an array of its kind."""
    M = member("toeplitz_like", 6)
    x, D = np.arange(6.0), M.to_dense().numpy()
    np.testing.assert_allclose(M.as_scipy() @ x[::-1], D @ x[::-1])
    A = M.to(torch.bfloat16).as_scipy()
    assert A.dtype == np.float32
    np.testing.assert_allclose(A @ x, D @ x, atol=0.1 * np.abs(D @ x).max())


def test_scipy_solvers_take_it():
    from scipy.sparse.linalg import gmres, svds

    M = 2 * torchldr.Circulant(32, 32, column=torch.eye(32, dtype=torch.float64)[0]) + member("circulant", 32)
    b = np.random.default_rng(0).standard_normal(32)
    x, flag = gmres(M.as_scipy(), b, rtol=1e-12)
    assert flag == 0
    np.testing.assert_allclose(x, M.solve(torch.from_numpy(b)).numpy(), rtol=1e-8)
    largest = svds(torchldr.algebra.as_scipy(M), k=1, return_singular_vectors=False)
    np.testing.assert_allclose(largest, np.linalg.norm(M.to_dense().numpy(), 2))


def test_complex_operators_have_conjugate_adjoints():
    M = torchldr.matrices.classical.Vandermonde(torch.randn(4, dtype=torch.complex128))
    A, D = M.as_scipy(), M.to_dense().numpy()
    y = np.random.default_rng(0).standard_normal(4) + 1j
    np.testing.assert_allclose(A.H @ y, D.conj().T @ y)


def test_without_scipy_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.sparse.linalg", None)
    with pytest.raises(ImportError, match="pip install scipy"):
        member("circulant", 4).as_scipy()


@pytest.mark.parametrize("structure", ["toeplitz_like", "circulant", "dense"])
@pytest.mark.parametrize("size", [1e-300, 1e-100, 1e100, 1e300])
def test_no_scale_makes_a_matrix_singular(structure, size):
    """Squares of such numbers are out of range."""
    M = member(structure, 32)
    x = torch.linspace(-1, 1, 32, dtype=torch.float64)
    for system, b, want in ((size * M, M.matmul(x), x / size), (M, size * M.matmul(x), size * x)):
        torch.testing.assert_close(system.solve(b), want, rtol=1e-9, atol=1e-9 * want.abs().max().item())
    assert torchldr.linalg.condition_estimate(size * M) == pytest.approx(
        torchldr.linalg.condition_estimate(M)
    )
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        torchldr.Dense(2, 2, weight=torch.full((2, 2), size, dtype=torch.float64)).solve(
            torch.ones(2).double()
        )
