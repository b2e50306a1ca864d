"""Toeplitz systems by iteration: as right as elimination, or left to it; against dense linear algebra."""

from __future__ import annotations

import importlib
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torchldr
from torchldr.functional import toeplitz_residuals
from torchldr.functional.toeplitz_residuals import gcr
from torchldr.kernels.cpu import library as gate
from torchldr.linalg import residual_iteration
from torchldr.linalg.residual_iteration import STEPS, ResidualIteration

solving = importlib.import_module("torchldr.linalg.solve")  # torchldr.linalg.solve is the function
NAME = "conjugate residuals"
N = 256


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def powers(n: int, base: float) -> torch.Tensor:
    return base ** torch.arange(n, dtype=torch.float64)


def shifted(column: torch.Tensor, by: float) -> torch.Tensor:
    column = column.clone()
    column[0] += by
    return column


WELL = {
    "positive definite": lambda n: torchldr.Toeplitz(powers(n, 0.7)),
    "symmetric": lambda n: torchldr.Toeplitz(shifted(normal(n), 4 * n**0.5)),
    "indefinite": lambda n: torchldr.Toeplitz(shifted(3 * powers(n, 0.1), -3.0)),
    "nonsymmetric": lambda n: torchldr.Toeplitz(
        shifted(normal(n), 4 * n**0.5), shifted(normal(n, seed=1), 4 * n**0.5)
    ),
    "negative": lambda n: torchldr.Toeplitz(-powers(n, 0.8), -powers(n, 0.3)),
    "triangular": lambda n: torchldr.Toeplitz(powers(n, 0.5), 1.0 * (torch.arange(n) == 0).double()),
    "large": lambda n: torchldr.Toeplitz(1e60 * powers(n, 0.7)),
    "small": lambda n: torchldr.Toeplitz(1e-60 * powers(n, 0.7)),
    "hankel": lambda n: torchldr.matrices.classical.Hankel(powers(n, 0.7).flip(0), powers(n, 0.5)),
}
ILL = {
    "Gauss": lambda n: torchldr.Toeplitz(torch.exp(-0.01 * torch.arange(n, dtype=torch.float64) ** 2)),
    "second difference": lambda n: torchldr.Toeplitz(
        torch.tensor([2.0, -1.0] + [0.0] * (n - 2), dtype=torch.float64)
    ),
    "slow decay": lambda n: torchldr.Toeplitz(powers(n, 0.9999)),
    "random": lambda n: torchldr.Toeplitz(normal(n), normal(n, seed=1)),
}


def backward_error(D: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> float:
    """|b - D x| / (|D| |x| + |b|) of the worst column."""
    left, norm = torch.linalg.vector_norm(b - D @ x, dim=-2), torch.linalg.matrix_norm(D, 2)
    whole = norm * torch.linalg.vector_norm(x, dim=-2) + torch.linalg.vector_norm(b, dim=-2)
    return float((left / torch.where(whole == 0, 1, whole)).max())


def quietly(M, b, **how):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torchldr.linalg.IllConditionedWarning)
        return torchldr.solve(M, b, **how)


@pytest.fixture
def taken(monkeypatch):
    """The solvers whose solutions were accepted."""
    found, inner = [], solving.certified_by

    def noted(*args, **kwargs):
        solver, certified = inner(*args, **kwargs)
        found.append(type(solver).__name__)
        return solver, certified

    monkeypatch.setattr(solving, "certified_by", noted)
    return found


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("name", WELL)
def test_well_conditioned_systems_are_solved_by_it(name, transposed, taken):
    M = WELL[name](N)
    M = M.T if transposed else M
    D, b = M.to_dense(), normal(N, 2)
    assert torchldr.linalg.solvers(M)[:2] == [NAME, "gko"]
    x, direct = M.solve(b), torchldr.solve(M, b, method="gko")
    assert taken[0] in ("ResidualIteration", "Swapped", "Formula")
    eps = torch.finfo(torch.float64).eps
    assert backward_error(D, x, b) <= 64 * eps
    assert backward_error(D, x, b) <= max(backward_error(D, direct, b), 16 * eps)
    right = torch.linalg.solve(D, b)
    assert (x - right).norm() <= 1e-13 * torch.linalg.cond(D) * right.norm()


@pytest.mark.parametrize("name", ILL)
def test_what_does_not_converge_is_left_to_elimination(name, taken):
    M, b = ILL[name](N), normal(N, 1)
    assert torchldr.linalg.solvers(M)[0] == NAME
    try:
        x = quietly(M, b)
    except torch.linalg.LinAlgError:
        with pytest.raises(torch.linalg.LinAlgError):
            quietly(M, b, method="gko")
        return
    assert taken == ["CauchySolver"]
    assert torch.equal(x, quietly(M, b, method="gko"))  # as if nothing had been tried
    assert backward_error(M.to_dense(), x, b) <= 1e-10


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("skew", [False, True])
def test_in_between_the_better_one_is_taken(transposed, skew, taken):
    """Differences to one and to both sides, with condition numbers near n: the iteration may do or not."""
    unit = (torch.arange(N) == 0).double()
    M = torchldr.Toeplitz(unit - unit.roll(1), unit)
    M = torchldr.Toeplitz(unit.roll(1), -unit.roll(1)) if skew else M
    M, b = M.T if transposed else M, normal(N, 2)
    x = M.solve(b)
    bound = 64 * torch.finfo(torch.float64).eps if taken[0] != "CauchySolver" else 1e-10
    assert backward_error(M.to_dense(), x, b) <= bound


def test_warnings_and_singular_matrices_are_those_of_elimination():
    """Also where the right-hand side is one that the iteration has no trouble with."""
    ones = torchldr.Toeplitz(torch.ones(N, dtype=torch.float64))
    with pytest.raises(torch.linalg.LinAlgError, match="singular to working precision"):
        ones.solve(torch.ones(N, dtype=torch.float64))
    near = torchldr.Toeplitz(powers(N, 0.5), shifted(0 * powers(N, 0.5), 1.0))
    near.entries[N - 1] = 1e-13  # the diagonal of a triangular matrix
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            near.solve(normal(N))
        except torch.linalg.LinAlgError:
            return
    assert [w.category for w in caught] == [torchldr.linalg.IllConditionedWarning]


def test_a_condition_number_above_what_is_trusted_is_left_to_elimination(taken, monkeypatch):
    monkeypatch.setattr(ResidualIteration, "trusted", 1.5)
    M, b = WELL["positive definite"](N), normal(N, 1)
    assert torch.equal(M.solve(b), torchldr.solve(M, b, method="gko"))
    assert taken[0] == "CauchySolver"


@pytest.mark.parametrize("size", [1e-9, 1e-3, 1.0])
def test_wrong_products_inside_are_noticed(size, taken, monkeypatch):
    """What the iteration believes to be T is another matrix: its solutions are measured and refused."""
    inner = toeplitz_residuals.form

    def wrong(column, row):
        form = inner(column, row)
        form.spectrum = form.spectrum * (
            1 + size * torch.rand(len(form.spectrum), generator=torch.Generator().manual_seed(0))
        )
        return form

    monkeypatch.setattr(toeplitz_residuals, "form", wrong)
    M, b = WELL["nonsymmetric"](N), normal(N, 1)
    x = M.solve(b)
    assert backward_error(M.to_dense(), x, b) <= 1e-12
    if size == 1.0:
        assert taken == ["CauchySolver"]


def test_named_it_says_that_it_gave_up():
    with pytest.raises(torch.linalg.LinAlgError, match="no method reached"):
        quietly(ILL["random"](N), normal(N), method=NAME)


@pytest.mark.parametrize("form", ["Plain", "Compiled"])
@given(
    n=st.integers(1, 80),
    rows=st.integers(1, 4),
    seed=st.integers(0, 2**20),
    transposed=st.booleans(),
    spread=st.sampled_from([0.1, 0.5, 1.0]),
)
@settings(max_examples=60)
def test_both_forms_on_small_systems(form, n, rows, seed, transposed, spread):
    column, row = spread * normal(2, n, seed=seed) / n**0.5
    column[0] = row[0] = 2.0
    D = torchldr.Toeplitz(column, row).to_dense()
    D = D.mT if transposed else D
    b = normal(rows, n, seed=seed + 1)
    b[0] = 0
    solver = getattr(toeplitz_residuals, form)(column, row)
    x = solver.solve(b, 1e-15 * b.norm(dim=-1), STEPS, transposed=transposed)
    if x is None:
        assert torch.linalg.cond(D) > 2
        return
    assert backward_error(D, x.mT, b.mT) <= 1e-13
    assert not x[0].any()


@pytest.mark.parametrize("n", [256, 300, 1021])
def test_both_forms_take_the_same_steps(n):
    T = WELL["nonsymmetric"](n)
    b = normal(3, n)
    target = torch.tensor([1e-12, 1.0, 1e-4], dtype=b.dtype)
    found = [
        form(T.column, T.row).solve(b, target, STEPS, transposed=False)
        for form in (toeplitz_residuals.Plain, toeplitz_residuals.Compiled)
    ]
    for x in found:
        assert bool(((b - T.matmul(x)).norm(dim=-1) <= 1.01 * target).all())


def test_without_kernels_the_plain_form_serves(monkeypatch, taken):
    M, b = WELL["nonsymmetric"](1024), normal(1024, 1)
    compiled = M.solve(b)
    monkeypatch.setattr(gate, "_loaded", lambda: (None, "switched off"))
    assert NAME not in torchldr.linalg.solvers(WELL["nonsymmetric"](N))  # elimination is as fast
    assert torchldr.linalg.solvers(M)[0] == NAME
    plain = M.solve(b)
    assert taken == ["ResidualIteration"] * 2
    assert (compiled - plain).norm() <= 1e-13 * plain.norm()


def test_float32_systems_lose_their_last_rounding_alone(taken):
    M = torchldr.Toeplitz(powers(N, 0.7).float())
    b = normal(N).float()
    x = M.solve(b)
    assert x.dtype == torch.float32
    assert taken == ["ResidualIteration"]
    right = torch.linalg.solve(torchldr.Toeplitz(powers(N, 0.7).float().double()).to_dense(), b.double())
    assert (x.double() - right).norm() <= torch.finfo(torch.float32).eps * right.norm()


def test_leading_axes_and_complex_right_hand_sides(taken):
    M = WELL["nonsymmetric"](N)
    b = torch.complex(normal(2, N, 3), normal(2, N, 3, seed=1))
    x = M.solve(b)
    assert x.shape == b.shape
    assert taken == ["ResidualIteration"]
    torch.testing.assert_close(M.to_dense().to(b.dtype) @ x, b)


def test_many_right_hand_sides_are_left_to_elimination(taken, monkeypatch):
    monkeypatch.setattr(residual_iteration, "LARGEST", 2 * N)
    M = WELL["positive definite"](N)
    for columns, solver in ((2, "ResidualIteration"), (3, "CauchySolver")):
        M.solve(normal(N, columns))
        assert taken.pop() == solver


def test_gradients_by_the_same_iteration(taken):
    column, row = (shifted(normal(N, seed=s), 4 * N**0.5).requires_grad_() for s in (0, 1))
    b, direction = normal(N).requires_grad_(), normal(N, seed=2)
    x = torchldr.Toeplitz(column, row).solve(b)
    found = torch.autograd.grad(x, (column, row, b), direction)
    assert taken == ["ResidualIteration"]
    right = torch.linalg.solve(torchldr.Toeplitz(column, row).to_dense(), b)
    for got, want in zip(found, torch.autograd.grad(right, (column, row, b), direction), strict=True):
        assert (got - want).norm() <= 1e-12 * want.norm()


def test_a_backward_pass_that_does_not_converge_is_left_to_elimination(monkeypatch):
    column = powers(N, 0.7).requires_grad_()
    b = normal(N)
    x = torchldr.Toeplitz(column).solve(b)
    monkeypatch.setattr(residual_iteration, "STEPS", 1)
    (found,) = torch.autograd.grad(x, column, torch.ones_like(x))
    right = torch.linalg.solve(torchldr.Toeplitz(column).to_dense(), b)
    (want,) = torch.autograd.grad(right, column, torch.ones_like(x))
    assert (found - want).norm() <= 1e-11 * want.norm()


def test_condition_estimates_do_not_go_by_iterations():
    M = WELL["nonsymmetric"](N)
    right = float(torch.linalg.cond(M.to_dense()))
    assert 0.5 * right <= torchldr.linalg.condition_estimate(M) <= 1.001 * right


def test_giving_up_takes_eight_steps():
    """Work is counted, not time: a matrix that the iteration cannot solve costs eight products."""
    counted = []
    D = torch.diag(torch.linspace(1e-6, 1, N, dtype=torch.float64))

    def product(x):
        counted.append(len(x))
        return x @ D

    b = normal(2, N)
    assert gcr(product, lambda r: r, b, 1e-15 * b.norm(dim=-1), most=STEPS) is None
    assert len(counted) == 8


def test_rows_leave_when_they_are_done():
    counted = []
    D = normal(N, N) / (4 * N**0.5) + torch.eye(N, dtype=torch.float64)

    def product(x):
        counted.append(len(x))
        return x @ D.mT

    b = normal(3, N)
    x = gcr(product, lambda r: r, b, torch.tensor([1e-12, 1.0, 1e-4], dtype=b.dtype), most=STEPS)
    left = (b - x @ D.mT).norm(dim=-1)
    assert bool((left <= torch.tensor([2e-12, 1.0, 1.01e-4])).all())
    assert counted == sorted(counted, reverse=True)
    assert counted[0] == 3
    assert counted[-1] == 1
