"""Elimination on generators, the modes of the shifts, rings and GMRES, against dense linear algebra."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from torchldr.functional import gmres, modes, triangular
from torchldr.functional.gko import elimination as gko
from torchldr.functional.reference import krylov_reference, shift_reference
from torchldr.kernels.cpu import library

EPS = torch.finfo(torch.float64).eps
DTYPES = [torch.float64, torch.complex128]


@pytest.fixture(params=["compiled", "plain"])
def loops(request, monkeypatch):
    """Both forms of the loops."""
    if request.param == "plain":
        monkeypatch.setattr(library, "_loaded", lambda: (None, "switched off"))


def draw(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def backward_bound(factors: gko.CauchyFactors) -> float:
    """What rounding may change in the matrix: n eps times the largest entry that its terms could make.

    The generators of all Schur complements, taken by their absolute values over the distance of the nodes.
    """
    n = factors.s.shape[0]
    size = lambda V: V.abs().amax(0).max()
    g, h = max(size(factors.G), size(factors.G_pivot)), max(size(factors.H), size(factors.H_pivot))
    apart = (factors.s.unsqueeze(-1) - factors.t).abs().min()
    return float(16 * n * n * EPS * factors.G.shape[0] * g * h / apart)


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "r", "p"), [(1, 1, 1), (2, 1, 3), (5, 3, 1), (17, 2, 2), (40, 5, 4)])
def test_factors_solve_the_system_and_its_transpose(n, r, p, dtype):
    s, t = draw(0, n, dtype=dtype), 6 + draw(1, n, dtype=dtype)
    G, H, b = (draw(seed, rows, n, dtype=dtype) for seed, rows in ((2, r), (3, r), (4, p)))
    C = gko.cauchy_like_reference(s, t, G, H) + 0
    factors, x = gko.factor(s, t, G, H, b)
    bound = backward_bound(factors)
    for solution, matrix in ((x, C), (factors.solve(b), C), (factors.solve(b, transposed=True), C.mT)):
        left = (b - solution @ matrix.mT).abs().amax(-1)
        assert bool((left <= bound * solution.abs().sum(-1)).all())


@given(
    n=st.integers(1, 48),
    r=st.integers(1, 4),
    seed=st.integers(0, 2**20),
    complex_=st.booleans(),
    repeated=st.booleans(),
)
@settings(max_examples=60)
def test_interleaved_and_repeated_nodes(n, r, seed, complex_, repeated):
    dtype = DTYPES[complex_]
    points = (2 * torch.arange(2 * n, dtype=torch.float64) + 1) / (2 * n) - 1
    if complex_:
        points = torch.polar(torch.ones_like(points), torch.pi * points)
    s, t = points[0::2].clone(), points[1::2].clone()
    if repeated and r > 1:  # every second node is its neighbour's
        s[1::2], t[1::2] = s[: n - n % 2 : 2], t[: n - n % 2 : 2]
    G, H, b = (draw(seed + i, rows, n, dtype=dtype) for i, rows in ((0, r), (1, r), (2, 2)))
    C = gko.cauchy_like_reference(s, t, G, H)
    assume(torch.linalg.cond(C) < 1e6)
    factors, x = gko.factor(s, t, G, H, b)
    bound = backward_bound(factors)
    for solution, matrix in ((x, C), (factors.solve(b, transposed=True), C.mT)):
        left = (b - solution @ matrix.mT).abs().amax(-1)
        assert bool((left <= bound * solution.abs().sum(-1)).all())


@pytest.mark.usefixtures("loops")
def test_pivoting_is_needed_and_done():
    """The leading entry is zero: without an exchange of rows the first step would divide by it."""
    s, t = torch.tensor([0.0, 1, 2], dtype=torch.float64), torch.tensor([0.5, 1.5, 2.5], dtype=torch.float64)
    G = torch.tensor([[1.0, 2, 1], [1, 1, 3]], dtype=torch.float64)
    H = torch.tensor([[1.0, 1, 2], [-1, 2, 1]], dtype=torch.float64)
    C = gko.cauchy_like_reference(s, t, G, H)
    assert C[0, 0] == 0
    b = draw(0, 1, 3)
    factors, x = gko.factor(s, t, G, H, b)
    torch.testing.assert_close(x, torch.linalg.solve(C, b.mT).mT)
    assert factors.order[0] != 0


@pytest.mark.usefixtures("loops")
def test_singular_matrices_have_no_factors():
    s, t = torch.arange(4, dtype=torch.float64), torch.arange(4, dtype=torch.float64) + 0.5
    one, b = torch.ones(1, 4, dtype=torch.float64), draw(0, 1, 4)
    zero_column = one * torch.tensor([1.0, 0, 1, 1])
    assert gko.factor(s, t, one, zero_column, b) is None
    same = torch.tensor([0.5, 0.5, 1.5, 2.5], dtype=torch.float64)
    assert gko.factor(s, same, one, one, b) is None  # two equal columns at rank 1


@given(nodes=st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_same_node_lists_every_other_place(nodes):
    table = gko.same_node(torch.tensor(nodes, dtype=torch.float64))
    for i, node in enumerate(nodes):
        others = {j for j, other in enumerate(nodes) if other == node and j != i}
        assert {int(j) for j in table[i] if j >= 0} == others


def test_same_node_of_numbers_that_torch_only_notes_as_negated():
    nodes = torch.tensor([2.0, 1.0, 2.0])
    assert torch.equal(gko.same_node(torch._neg_view(nodes)), gko.same_node(-nodes))


def test_memory_of_the_factors_is_linear():
    n, r = 512, 2
    P, Q = draw(0, r, n), draw(1, r, n)
    factors, _ = gko.factor(*modes.cauchy_like_of_toeplitz_like(P, Q), draw(2, 1, n))
    tensors = [t for field in factors for t in (field if isinstance(field, tuple) else (field,))]
    assert sum(t.numel() for t in tensors) <= (4 * 2 * r + 8) * n


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 9, 30])
def test_modes_are_orthogonal_eigenvectors(n):
    eye = torch.eye(n, dtype=torch.float64)
    for f, analyse, synthesise, nodes in (
        (1.0, modes.cyclic_modes, modes.cyclic_synthesis, modes.cyclic_nodes(n)),
        (-1.0, modes.anticyclic_modes, modes.anticyclic_synthesis, modes.anticyclic_nodes(n)),
    ):
        R, Z = analyse(eye).mT, shift_reference(n, f)
        close = {"rtol": 0, "atol": 32 * n * EPS}
        torch.testing.assert_close(R @ R.mT, eye, **close)
        torch.testing.assert_close(synthesise(eye), R, **close)
        torch.testing.assert_close(R @ (Z + Z.mT) @ R.mT, torch.diag(nodes), **close)


@pytest.mark.parametrize(("n", "r"), [(1, 1), (2, 1), (7, 2), (16, 3)])
def test_a_toeplitz_like_matrix_is_cauchy_like_among_the_modes(n, r):
    P, Q = draw(0, r, n), draw(1, r, n)
    Z, Y = shift_reference(n, 1.0), shift_reference(n, -1.0)
    # T - Z T Y^T = P^T Q, as a linear system for the entries of T.
    equation = torch.eye(n * n, dtype=torch.float64) - torch.kron(Z, Y)
    T = torch.linalg.solve(equation, (P.mT @ Q).flatten()).unflatten(0, (n, n))
    C = gko.cauchy_like_reference(*modes.cauchy_like_of_toeplitz_like(P, Q))
    x = draw(2, 3, n)
    expected, found = modes.cyclic_modes(x @ T.mT), modes.anticyclic_modes(x) @ C.mT
    apart = (modes.cyclic_nodes(n).unsqueeze(-1) - modes.anticyclic_nodes(n)).abs().min()
    size = (P.abs().mT @ Q.abs()).max() * x.abs().sum(-1).max() * r * n
    assert (expected - found).abs().max() <= 64 * EPS * size / apart


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("f", [0.0, 1.0, -1.0, 0.3, -2.0])
@pytest.mark.parametrize("n", [1, 2, 9, 32])
def test_rings_are_solved(n, f):
    w, b = draw(0, n) * 0.3 / n, draw(1, 3, n)
    w[0] = 1
    F = krylov_reference(shift_reference(n, f), w, n)
    bound = 64 * n * EPS * float(torch.linalg.cond(F))
    for transposed, matrix in ((False, F), (True, F.mT)):
        y = triangular.ring_solve(w, f, b, transposed=transposed)
        assert (y @ matrix.mT - b).norm() <= bound * b.norm()


def test_substitution_is_blind_to_scales():
    """Rows and columns over 200 orders of magnitude: the digits are those of the even matrix."""
    n = 40
    w, b = draw(0, n) * 0.1, draw(1, 1, n)
    w[0] = 1
    scale = 10.0 ** torch.linspace(0, 200, n, dtype=torch.float64)
    y = triangular.lower_toeplitz_solve(w, b)
    # diag(scale) T diag(1/scale) is Toeplitz again, with first column scale * w.
    step = scale[1] / scale[0]
    graded = step ** torch.arange(n, dtype=torch.float64)
    z = triangular.lower_toeplitz_solve(w * graded, b * graded)
    torch.testing.assert_close(z / graded, y, rtol=1e-11, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "restart"), [(1, 4), (20, 64), (60, 12)])
def test_gmres_reaches_its_tolerance(n, restart, dtype):
    A = torch.eye(n, dtype=dtype) + 0.5 * draw(0, n, n, dtype=dtype) / n**0.5
    b = draw(1, 3, n, dtype=dtype)
    b[1] = 0
    x, error = gmres.gmres(lambda v: v @ A.mT, b, tol=1e-12, restart=restart)
    left = torch.linalg.vector_norm(b - x @ A.mT, dim=-1)
    assert bool((left <= 1e-12 * torch.linalg.vector_norm(b, dim=-1)).all())
    assert bool((error <= 1e-12).all())
    assert not x[1].any()


def test_gmres_says_where_it_does_not_converge():
    shift = lambda v: v.roll(1, -1)  # the classic: no progress before n steps
    b = torch.zeros(1, 50, dtype=torch.float64)
    b[0, 0] = 1
    _, error = gmres.gmres(shift, b, restart=10)
    assert error.item() == 1
    assert gmres.gmres(shift, b, restart=50)[1].item() < 1e-12
