"""Solving on a GPU: the same solutions, by methods in another order."""

import pytest
import torch

import torchldr

N = 256
CLASSES = "toeplitz_like", "hankel_like", "cauchy_like", "ldr_sd", "ldr_td"


def member(name):
    g = torch.Generator().manual_seed(0)
    M = torchldr.structures()[name].random(N, N, rank=2, dtype=torch.float64, generator=g)
    return M.to("cuda")


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.filterwarnings("ignore::torchldr.linalg.IllConditionedWarning")
def test_the_dense_matrix_comes_first_and_every_method_solves(name):
    M, b = member(name), torch.randn(N, 3, dtype=torch.float64, device="cuda")
    methods = torchldr.linalg.solvers(M)
    assert methods[0] == "dense"
    assert ("gko" in methods) == (name != "ldr_td")
    for method in methods:
        if method != "gmres":  # which may not come to an end
            for square in (M, M.T):
                x = square.solve(b, method=method)
                assert x.device == b.device
                assert (square @ x - b).norm() <= 1e-8 * (square.to_dense().norm() * x.norm())


def test_long_systems_go_by_generators():
    n = 8200  # more than the dense matrix is made for
    M = torchldr.ToeplitzLike.random(n, n, rank=1, dtype=torch.float64).to("cuda")
    assert torchldr.linalg.solvers(M)[0] == "gko"


@pytest.mark.parametrize(("n", "first"), [(1024, "dense"), (2048, "conjugate residuals")])
def test_toeplitz(n, first):
    column = 0.7 ** torch.arange(n, dtype=torch.float64, device="cuda")
    T = torchldr.Toeplitz(column)
    assert torchldr.linalg.solvers(T)[0] == first
    b = torch.randn(n, dtype=torch.float64, device="cuda")
    assert (T @ T.solve(b) - b).norm() <= 1e-10 * b.norm()
