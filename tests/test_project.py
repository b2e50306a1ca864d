"""The parts of the projection, each held against a slow definition."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import torchldr
from torchldr.kernels.cpu import library
from torchldr.matrices.ldr_sd.project import evaluate, from_edges, ring_power
from torchldr.matrices.vandermonde_like.project import columns, columns_transposed
from torchldr.project.pointwise import Pointwise
from torchldr.project.problem import Problem
from torchldr.project.refining import lbfgs, refine
from torchldr.project.solving import conjugate_gradients, halves, leading
from torchldr.project.stein import displacement, fit_operators

EPS = torch.finfo(torch.float64).eps
sizes, seeds = st.integers(1, 9), st.integers(0, 2**31)


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=drawn(seed))


@pytest.fixture(params=["compiled", "plain"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        monkeypatch.setattr(library, "_loaded", lambda: (None, "switched off"))
    elif library.why_not():
        pytest.skip(str(library.why_not()))
    return request.param


SHAPES = [(1, 1), (1, 4), (4, 1), (2, 2), (5, 5), (4, 7), (7, 4)]


@pytest.mark.parametrize("shape", SHAPES)
def test_evaluation_is_the_class(shape: tuple[int, int], loops: str):
    M = torchldr.LDRSubdiagonal.random(*shape, min(2, *shape), dtype=torch.float64, generator=drawn(1))
    inputs = [t.clone().requires_grad_() for t in M.tensors.values()]
    dense = lambda *tensors: evaluate(dict(zip(M.tensors, tensors, strict=True)))
    assert ((dense(*inputs) - M.to_dense()).abs() <= 8 * sum(shape) * EPS * M.magnitude()).all()
    assert torch.autograd.gradcheck(dense, inputs)


@pytest.mark.parametrize("shape", SHAPES)
def test_materialize_is_the_class(shape: tuple[int, int], loops: str):
    M = torchldr.LDRTridiagonal.random(*shape, min(2, *shape), dtype=torch.float64, generator=drawn(2))
    inputs = [t.clone().requires_grad_() for t in M.tensors.values()]

    def dense(*tensors: Tensor) -> Tensor:
        named = dict(zip(M.tensors, tensors, strict=True))
        return torchldr.LDRTridiagonal.unchecked(*shape, named, M.options).materialize()

    assert ((dense(*inputs) - M.to_dense()).abs() <= 16 * sum(shape) * EPS * M.magnitude()).all()
    assert torch.autograd.gradcheck(dense, inputs)


@given(sizes, st.integers(0, 20), seeds)
@settings(max_examples=25)
def test_power_of_a_ring(n: int, k: int, seed: int):
    c, H = normal(n, seed=seed), normal(2, n, seed=seed + 1)
    C = torch.diag(c).roll(-1, 1)
    assert torch.allclose(ring_power(c, k, H), H @ torch.linalg.matrix_power(C, k).mT, atol=1e-300)


@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_column_recursion_and_its_adjoint(m: int, n: int, loops: str):
    nodes, E, Y = normal(m, seed=1).tanh(), normal(m, n, seed=2), normal(m, n, seed=3)
    X = columns(nodes, E)
    Z = torch.diag(torch.ones(n - 1, dtype=torch.float64), 1)
    assert torch.allclose(X - nodes.unsqueeze(1) * (X @ Z), E, atol=1e-13)
    torch.testing.assert_close((X * Y).sum(), (E * columns_transposed(nodes, Y)).sum())


@given(sizes, sizes, seeds)
@settings(max_examples=25)
def test_displacement_with_rings(m: int, n: int, seed: int):
    W, offsets = normal(m, n, seed=seed), (-1, 0, 1)
    A, C = normal(3, m, seed=seed + 1), normal(3, n, seed=seed + 2)

    def dense(ring: Tensor) -> Tensor:
        size = ring.shape[1]
        total = torch.zeros(size, size, dtype=torch.float64)
        for row, offset in zip(ring, offsets, strict=True):
            total += torch.diag(row).roll(offset, 1)
        return total

    torch.testing.assert_close(displacement(W, A, C, offsets), W - dense(A) @ W @ dense(C).mT)


def test_operators_are_found_quadratically():
    """From shifts to the operators of a member, to full digits in twelve steps."""
    M = torchldr.LDRSubdiagonal.random(40, 32, 2, dtype=torch.float64, generator=drawn(3))
    a = torch.cat((M.corner_A.reshape(1), M.subdiagonal_A))
    c = torch.cat((M.corner_C.reshape(1), M.subdiagonal_C))
    A, C = torch.ones(1, 40, dtype=torch.float64), torch.ones(1, 32, dtype=torch.float64)
    found = fit_operators(M.to_dense(), 2, (-1,), A, C, steps=12, first=1)
    assert found.loss < 1e-24
    edges = found.A[0, 1:].unsqueeze(1) * found.C[0, 1:]
    torch.testing.assert_close(edges, a[1:].unsqueeze(1) * c[1:])


@given(st.integers(6, 12), st.integers(6, 12), seeds, st.booleans())
@settings(max_examples=10)
def test_alternating_solves_are_least_squares(m: int, n: int, seed: int, weighted: bool):
    """Each half of a sweep is the solution of the written-out least-squares problem."""
    r = 2
    W, c, h = (normal(*s, seed=seed + i) for i, s in enumerate(((m, n), (m, n), (r, n))))
    B = normal(n, n + 3, seed=seed + 3) if weighted else torch.eye(n, dtype=torch.float64)
    problem = Pointwise(W, c, B if weighted else None)
    g = problem.best_rows(h)
    for i in range(m):
        exact = torch.linalg.lstsq(((c[i] * h) @ B).mT, (W[i] @ B).unsqueeze(1)).solution.squeeze(1)
        ours, best = (((W[i] - c[i] * (x @ h)) @ B).norm() for x in (g[:, i], exact))
        assert ours <= best + 1e-7 * (W[i] @ B).norm()
    if not weighted:
        assert torch.allclose(problem.best_columns(g, h), Pointwise(W.mT, c.mT).best_rows(g))
    before = problem.loss(g, h)
    assert problem.loss(g, problem.best_columns(g, h)) <= before * (1 + 1e-9)


@given(st.integers(1, 10), seeds)
@settings(max_examples=25)
def test_conjugate_gradients_solve(n: int, seed: int):
    root, right = normal(n, n, seed=seed), normal(n, seed=seed + 1)
    N = root @ root.mT + torch.eye(n, dtype=torch.float64)
    x = conjugate_gradients(lambda v: N @ v, right, torch.zeros_like(right), lambda v: v, 4 * n)
    assert (N @ x - right).norm() <= 1e-8 * right.norm()


def test_lbfgs_reaches_the_minimum_of_a_narrow_valley():
    def rosenbrock(x: Tensor) -> tuple[float, Tensor]:
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            value = (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()
            (gradient,) = torch.autograd.grad(value, x)
        return value.item(), gradient

    x, value = lbfgs(rosenbrock, torch.full((8,), -1.2, dtype=torch.float64), 200)
    assert value < 1e-16
    assert torch.allclose(x, torch.ones_like(x), atol=1e-7)


def test_lbfgs_never_returns_a_worse_point():
    """A function with a cliff: values that are not finite are no progress."""

    def cliff(x: Tensor) -> tuple[float, Tensor]:
        value = (x.square().sum() - 1).log()
        return value.item(), 2 * x / (x.square().sum() - 1)

    start = torch.tensor([2.0, 0.0], dtype=torch.float64)
    x, value = lbfgs(cliff, start, 30)
    assert value <= cliff(start)[0]
    assert value == cliff(x)[0]


def test_a_start_that_overflows_is_the_worst():
    W = normal(300, 300, seed=1)
    problem = Problem(W, None, torchldr.LDRSubdiagonal, {"product": "auto"}, {})
    a = torch.full((300,), 40.0, dtype=torch.float64)
    start = from_edges(a, a, normal(1, 300, seed=2), normal(1, 300, seed=3))
    assert refine(problem, start, 0, evaluate=evaluate).loss == math.inf
    assert refine(problem, start, 3, evaluate=evaluate).loss == math.inf


def test_leading_part_of_a_large_matrix():
    U, V = normal(400, 5, seed=1), normal(5, 360, seed=2)
    W = U @ V + 1e-3 * normal(400, 360, seed=3)
    G, H = halves(*leading(W, 5))
    S = torch.linalg.svdvals(W)
    assert (W - G.mT @ H).norm() <= S[5:].norm() * (1 + 1e-6)


def test_every_draw_has_its_own_generator():
    problem = Problem(torch.eye(2, dtype=torch.float64), None, torchldr.Dense, {}, {}, seed=3)
    first = torch.rand(3, generator=problem.generator(1, 2))
    assert torch.equal(first, torch.rand(3, generator=problem.generator(1, 2)))
    assert not torch.equal(first, torch.rand(3, generator=problem.generator(2, 1)))
