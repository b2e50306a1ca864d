"""Solving with every structured class, against dense linear algebra in float64."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad

import torchldr
from torchldr.functional.gko import elimination as gko
from torchldr.functional.reference import shift_reference
from torchldr.functional.subdiagonal.guard import reach
from torchldr.kernels.cpu import library
from torchldr.linalg import candidates as solver_rules
from torchldr.linalg.widening import widened
from torchldr.operators import BlockDiagonal, Diagonal, Shift, Tridiagonal

from ..processes import Case, in_forks

LinAlgError = torch.linalg.LinAlgError
SOLVABLE = [name for name in torchldr.structures() if name not in ("low_rank", "blast")]
BY_GENERATORS = ["toeplitz_like", "hankel_like", "cauchy_like", "vandermonde_like", "ldr_sd"]


def member(name: str, n: int, rank: int = 2, seed: int = 0, dtype: torch.dtype = torch.float64):
    cls, generator = torchldr.get_structure(name), torch.Generator().manual_seed(seed)
    options = {"rank": min(rank, n)} if cls.ranked else {}
    return cls.random(n, n, dtype=dtype, generator=generator, **options)


def backward_error(D: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> float:
    """|b - D x| / (|D| |x| + |b|) of the worst column, from the dense matrix."""
    left, norm = torch.linalg.vector_norm(b - D @ x, dim=-2), torch.linalg.matrix_norm(D, 2)
    whole = norm * torch.linalg.vector_norm(x, dim=-2) + torch.linalg.vector_norm(b, dim=-2)
    return float((left / whole).max())


def with_update(M: torchldr.StructuredMatrix, u: torch.Tensor, v: torch.Tensor):
    """M + u v^T in M's own class, two generators more: the displacement of u v^T has rank 2."""
    n = M.in_features
    if isinstance(M, torchldr.CauchyLike):
        added = (M.s * u, -u), (v, M.t * v)
    elif isinstance(M, torchldr.ToeplitzLike):
        u = u.flip(0) if isinstance(M, torchldr.HankelLike) else u
        added = (u / 2, -shift_reference(n, 1.0) @ u / 2), (v, shift_reference(n, -1.0) @ v)
    elif isinstance(M, torchldr.VandermondeLike):
        added = (u, -M.nodes * u), (v, shift_reference(n, 0.0) @ v)
    else:
        A = torch.diag(M.subdiagonal_A, -1)  # nilpotent: the corner is 0
        C = torch.diag(M.subdiagonal_C, -1)
        C[0, -1] = M.corner_C
        added = (u, -A @ u), (v, C @ v)
    G, H = (torch.cat((old, torch.stack(new))) for old, new in zip((M.G, M.H), added, strict=True))
    others = {name: t for name, t in M.tensors.items() if name not in "GH"}
    return type(M)(n, n, G=G, H=H, **others)


def conditioned(name: str, n: int, condition: float, rank: int = 2, seed: int = 0):
    """A member with this condition number: its smallest singular value set by an update of rank one."""
    M = member(name, n, rank, seed)
    if name == "ldr_sd":
        M.corner_A.zero_()
    U, S, Vh = torch.linalg.svd(M.to_dense())
    M = with_update(M, U[:, -1] * (S[0] / condition - S[-1]), Vh[-1])
    found = float(torch.linalg.cond(M.to_dense()))
    assert condition > 1e14 or abs(found / condition - 1) < 1e-2
    return M


@given(
    name=st.sampled_from(SOLVABLE),
    n=st.integers(1, 40),
    rank=st.integers(1, 4),
    columns=st.integers(0, 3),
    seed=st.integers(0, 2**20),
    transposed=st.booleans(),
)
@settings(max_examples=150)
def test_every_class_is_solved_or_says_why_not(name, n, rank, columns, seed, transposed):
    M = member(name, n, rank, seed)
    D = M.to_dense().mT if transposed else M.to_dense()
    M = M.T if transposed else M
    b = torch.randn(n, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    b = b if columns else torch.randn(n, dtype=torch.float64)
    condition = float(torch.linalg.cond(D))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            x = M.solve(b)
        except LinAlgError:
            assert condition > 1e12
            return
    assert x.shape == b.shape
    assert backward_error(D, x.reshape(n, -1), b.reshape(n, -1)) <= 1e-12
    if condition < 0.99e8:  # the estimate is one from below
        assert not caught
    if condition > 1e9:
        assert [w.category for w in caught] == [torchldr.linalg.IllConditionedWarning]


@pytest.mark.parametrize("condition", [1e6, 1e8])
@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("name", BY_GENERATORS)
def test_residuals_up_to_a_condition_number_of_1e8(name, condition, transposed):
    """By every solver that the class has, at a size where elimination on generators comes first."""
    small = name == "vandermonde_like"  # their condition numbers grow exponentially with n
    M = conditioned(name, 12 if small else 200, condition)
    D = M.to_dense().mT if transposed else M.to_dense()
    x = torch.randn(M.in_features, 2, dtype=torch.float64)
    b = D @ x
    b[:, 1] = x[:, 1]  # one solution of the size of b, one that is as large as can be
    S = M.T if transposed else M
    assert any("gko" in method for method in torchldr.linalg.solvers(S))
    for method in (None, *torchldr.linalg.solvers(S)):
        if method == "gmres":
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", torchldr.linalg.IllConditionedWarning)
            y = torchldr.solve(S, b, method=method)
        assert backward_error(D, y, b) <= 1e-13, method
        assert (D @ y - b)[:, 0].norm() <= 1e-10 * b[:, 0].norm(), method
        assert (y - x)[:, 0].norm() <= 1e-13 * condition * x[:, 0].norm(), method


@pytest.mark.parametrize("name", BY_GENERATORS)
def test_beyond_that_a_warning_says_the_condition_number(name):
    M = conditioned(name, 12 if name == "vandermonde_like" else 200, 1e11)
    with pytest.warns(
        torchldr.linalg.IllConditionedWarning, match=r"condition number of \d\.\de\+1[012]"
    ) as caught:
        M.solve(torch.randn(M.in_features, dtype=torch.float64))
    assert caught[0].filename == __file__


@pytest.mark.parametrize("size", [1e-6, 1.0])
def test_a_method_is_measured_and_not_believed(size, monkeypatch):
    """Errors in the generators: small ones are refined away, after large ones comes the next method."""
    right = solver_rules.real_toeplitz_form
    wrong = lambda P, Q: right(P + size * P.norm() * torch.randn_like(P), Q)
    monkeypatch.setattr(solver_rules, "real_toeplitz_form", wrong)
    M = member("toeplitz_like", 256)
    D, b = M.to_dense(), torch.randn(256, 1, dtype=torch.float64)
    assert backward_error(D, M.solve(b), b) <= 1e-12
    if size == 1:
        with pytest.raises(LinAlgError):
            M.solve(b, method="gko")


def test_many_small_singular_values_do_not_make_a_warning():
    """The inverse is large in its Frobenius norm: 2e8 by that, 1e7 by the 2-norm."""
    M = torchldr.Toeplitz(0.9999 ** torch.arange(600, dtype=torch.float64))
    assert float(torch.linalg.cond(M.to_dense())) < 2e7
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        M.solve(torch.randn(600, dtype=torch.float64))


@pytest.mark.parametrize("name", BY_GENERATORS)
def test_singular_matrices_raise(name):
    M = conditioned(name, 12 if name == "vandermonde_like" else 200, 1e20)
    b = torch.randn(M.in_features, dtype=torch.float64)
    for system in (M, M.T):
        with pytest.raises(LinAlgError, match="singular to working precision"):
            system.solve(b)
    with pytest.raises(LinAlgError):
        M.solve(M @ b)  # although this one has solutions


@pytest.mark.parametrize("name", BY_GENERATORS)
def test_a_solution_out_of_range_is_not_called_singular(name):
    M, b = member(name, 12), torch.randn(12, 2, dtype=torch.float64)
    small = M.with_tensors({**M.tensors, "G": 1e-200 * M.tensors["G"]})
    for system in (small, small.T):
        x = system.solve(1e-50 * b)
        torch.testing.assert_close(system @ x, 1e-50 * b, rtol=1e-6, atol=1e-60)
        with pytest.raises(LinAlgError, match=r"x leaves the range of torch.float64: .* about 1e3\d\d\."):
            system.solve(1e150 * b)


def test_more_singular_matrices():
    n, b = 8, torch.randn(8, dtype=torch.float64)
    one = torch.ones(n, dtype=torch.float64)
    zero = torch.zeros(n, dtype=torch.float64)
    for M in (
        member("low_rank", n, 3),
        torchldr.Circulant(n, n, column=one),
        torchldr.ACDC(n, n, A=one, D=zero),
        torchldr.Toeplitz(one),
        torchldr.Toeplitz(torch.ones(300, dtype=torch.float64)),
        torchldr.Dense(n, n, weight=torch.ones(n, n, dtype=torch.float64)),
        torchldr.ToeplitzLike(n, n, G=zero[None], H=one[None]),
    ):
        with pytest.raises(LinAlgError, match=f"{type(M).__name__} of .* is singular"):
            M.solve(b if M.in_features == n else torch.ones(300, dtype=torch.float64))


@pytest.mark.parametrize("name", ["toeplitz_like", "cauchy_like", "ldr_sd", "vandermonde_like"])
def test_without_kernels_the_same(name, monkeypatch):
    M = member(name, 10 if name == "vandermonde_like" else 24)
    b = torch.randn(M.in_features, 2, dtype=torch.float64)
    for method in torchldr.linalg.solvers(M):
        compiled = torchldr.solve(M, b, method=method)
        with monkeypatch.context() as patch:
            patch.setattr(library, "_loaded", lambda: (None, "switched off"))
            plain = torchldr.solve(M, b, method=method)
        bound = 1e-13 * float(torch.linalg.cond(M.to_dense()))
        assert (compiled - plain).norm() <= bound * compiled.norm()


@pytest.mark.parametrize("corners", [(0.0, 0.0), (0.0, 0.7), (-0.4, 0.0), (0.5, -1.2), (1.0, -1.0)])
@pytest.mark.parametrize("rank", [1, 2])
def test_ldr_sd_with_and_without_corners(corners, rank):
    n = 256
    M = member("ldr_sd", n, rank)
    M.corner_A.fill_(corners[0])
    M.corner_C.fill_(corners[1])
    M.G[0, 0] = M.H[0, 0] = M.G.abs().sum()  # triangular factors with a large diagonal
    D, b = M.to_dense(), torch.randn(n, 2, dtype=torch.float64)
    expected = ["krylov factors"] * (rank == 1) + ["gko", "gko, complex nodes", "dense", "gmres"]
    assert torchldr.linalg.solvers(M) == expected
    for method in expected[:-1]:
        assert backward_error(D, torchldr.solve(M, b, method=method), b) <= 1e-13, method


@pytest.mark.parametrize("spread", [1.0, 100.0, 1000.0, 1e5])
def test_the_range_of_ldr_sd_costs_no_digits_that_are_promised(spread):
    n = 256
    M = member("ldr_sd", n, 2)
    for side in "AC":  # scales that fall and rise again, by this much
        steps = torch.ones(n - 1, dtype=torch.float64)
        steps[: n // 2], steps[n // 2 :] = spread ** (-1 / n), spread ** (1 / n)
        M.tensors[f"subdiagonal_{side}"].copy_(steps)
        M.tensors[f"corner_{side}"].fill_(0.3)
    M.G[0, 0] = M.H[0, 0] = M.G.abs().sum()
    assert 0.5 * spread < reach(*M._sides()) < 2 * spread
    D, b = M.to_dense(), torch.randn(n, 2, dtype=torch.float64)
    x = M.solve(b)
    assert backward_error(D, x, b) <= 1e-12
    assert (D @ x - b).norm() <= 1e-10 * b.norm()
    # What measures the residual: "auto" may divide by scales, the dense matrix loses nothing.
    for product, bound in (("fast", 1e-10), ("dense", 1e-14)):
        y = M.matmul(b.mT, product=product).mT
        assert (y - D @ b).norm() <= bound * D.norm() * b.norm()


def test_ldr_sd_of_wide_range_and_with_zeros():
    n = 256
    M = member("ldr_sd", n, 1)
    for side in "AC":
        M.tensors[f"subdiagonal_{side}"].uniform_(0.3, 1.2, generator=torch.Generator().manual_seed(1))
        M.tensors[f"corner_{side}"].zero_()
    M.G[0, 0] = M.H[0, 0] = M.G.abs().sum()
    assert torchldr.linalg.solvers(M)[0] == "krylov factors"
    assert "gko" not in torchldr.linalg.solvers(M)  # the scales span forty orders of magnitude
    b = torch.randn(n, 1, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torchldr.linalg.IllConditionedWarning)
        with pytest.raises(LinAlgError):
            M.solve(b)  # the diagonal of its factors falls below what float64 holds apart
    M = member("ldr_sd", n, 8)
    M.subdiagonal_A[n // 2] = 0
    assert torchldr.linalg.solvers(M) == ["dense", "gmres"]
    x = M.solve(b)
    assert backward_error(M.to_dense(), x, b) <= 1e-13


@pytest.mark.parametrize("name", SOLVABLE)
def test_gradients(name):
    n = 4 if name in ("fastfood", "vandermonde_like") else 5
    M = member(name, n, 2, seed=3)
    learned = [
        key for key, t in M.tensors.items() if t.is_floating_point() and key not in ("s", "t", "nodes")
    ]
    b = torch.randn(n, 2, dtype=torch.float64, requires_grad=True)
    leaves = [M.tensors[key].clone().requires_grad_() for key in learned]

    for transposed in (False, True):

        def solution(b, *tensors, transposed=transposed):
            N = M.unchecked(n, n, {**M.tensors, **dict(zip(learned, tensors, strict=True))}, M.options)
            return (N.T if transposed else N).solve(b)

        assert torch.autograd.gradcheck(solution, (b, *leaves), fast_mode=True)


def test_gradients_by_elimination_on_generators():
    """At a size where GKO is taken, against the dense solution's gradients."""
    M = member("toeplitz_like", 220)
    b, c = torch.randn(2, 220, dtype=torch.float64)
    assert torchldr.linalg.solvers(M)[0] == "gko"
    found = []
    for solve in (lambda M, b: M.solve(b), lambda M, b: torch.linalg.solve(M.to_dense(), b)):
        tensors = {key: t.clone().requires_grad_() for key, t in M.tensors.items()}
        rhs = b.clone().requires_grad_()
        (solve(M.unchecked(220, 220, tensors, M.options), rhs) @ c).backward()
        found.append([rhs.grad, *(t.grad for t in tensors.values())])
    condition = float(torch.linalg.cond(M.to_dense()))
    for ours, dense in zip(*found, strict=True):
        assert (ours - dense).norm() <= 1e-13 * condition**2 * dense.norm()


def test_compiled_it_runs_eagerly_with_one_graph_break():
    M = torchldr.CauchyLike.random(24, 24, rank=2, dtype=torch.float64)
    b = torch.randn(24, dtype=torch.float64, requires_grad=True)
    program = lambda b: M.solve(2 * b).square().sum()
    (wanted,) = torch.autograd.grad(program(b), b)
    (found,) = torch.autograd.grad(torch.compile(program, backend="aot_eager")(b), b)
    torch.testing.assert_close(found, wanted)
    assert torch._dynamo.explain(program)(b).graph_break_count == 1


def test_a_second_derivative_is_refused():
    """Also where torch asks for it allowing that there is none, as its `hessian` does: it gave zeros."""
    M = member("toeplitz_like", 6)
    b = torch.randn(6, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.autograd.grad((M.solve(b) ** 2).sum(), b, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.autograd.functional.hessian(lambda b: (M.solve(b) ** 2).sum(), b)


@pytest.mark.parametrize("name", ["toeplitz_like", "circulant", "low_rank"])
@pytest.mark.parametrize("n", [6, 220])
def test_forward_mode(name, n):
    """Tangents of b and of the parameters were dropped without a word."""
    M = member(name, n, n if name == "low_rank" else 2)
    b, c = torch.randn(2, n, dtype=torch.float64)
    tangents = {key: torch.randn_like(t) for key, t in M.tensors.items()}
    found = []
    for solve in (lambda M, b: M.solve(b), lambda M, b: torch.linalg.solve(M.to_dense(), b)):
        with forward_ad.dual_level():
            duals = {key: forward_ad.make_dual(t, tangents[key]) for key, t in M.tensors.items()}
            x = solve(M.unchecked(n, n, duals, M.options), forward_ad.make_dual(b, c))
            found.append(forward_ad.unpack_dual(x).tangent)
    condition = float(torch.linalg.cond(M.to_dense()))
    assert (found[0] - found[1]).norm() <= 1e-13 * condition**2 * found[1].norm()


@pytest.mark.parametrize("name", ["toeplitz_like", "circulant", "ldr_td"])
def test_float32_is_solved_in_float64(name):
    M = member(name, 64, dtype=torch.float32)
    x = torch.randn(64, 3)
    D = M.double().to_dense()
    b = (D @ x.double()).float()
    y = M.solve(b)
    assert y.dtype == torch.float32
    assert backward_error(D, y.double(), b.double()) <= 2 * torch.finfo(torch.float32).eps


def test_a_tolerance_of_zero_is_refined_to_the_level_of_rounding():
    """It was taken for no tolerance, 1e-10."""
    M = member("toeplitz_like", 512)
    b = torch.randn(512, 1, dtype=torch.float64)
    errors = [backward_error(M.to_dense(), M.solve(b, tol=tol), b) for tol in (None, 0)]
    assert errors[1] <= 1e-15 < errors[0]
    for tol in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="tol must be 0 or more"):
            M.solve(b, tol=tol)


def test_stacks():
    M = torchldr.stack([member("toeplitz_like", 6, seed=seed) for seed in (0, 1)])
    b = torch.randn(2, 6, 3, dtype=torch.float64)
    assert torch.equal(torchldr.solve(M, b), M.solve(b))


def test_shapes_and_dtypes_of_right_hand_sides():
    M = member("toeplitz_like", 6)
    D = M.to_dense()
    for shape in ((6,), (6, 1), (6, 4), (2, 6, 3), (2, 1, 6, 3), (6, 0)):
        b = torch.randn(shape, dtype=torch.float64)
        torch.testing.assert_close(M.solve(b), torch.linalg.solve(D, b))
    b = torch.randn(6, 2, dtype=torch.complex128)
    torch.testing.assert_close(M.solve(b), torch.linalg.solve(D.to(b.dtype), b))
    assert not M.solve(torch.zeros(6, dtype=torch.float64)).any()


def test_complex_matrices():
    nodes = torch.polar(torch.ones(8, dtype=torch.float64), torch.linspace(0, 5.5, 8, dtype=torch.float64))
    M = torchldr.matrices.classical.Vandermonde(nodes)
    b = torch.randn(8, 2, dtype=torch.complex128, requires_grad=True)
    for method in torchldr.linalg.solvers(M):
        torch.testing.assert_close(torchldr.solve(M, b, method=method), torch.linalg.solve(M.to_dense(), b))
    assert torch.autograd.gradcheck(M.solve, (b,))
    Z = torchldr.operators.Shift(8, 0.5, dtype=torch.complex128)  # whose entries are real all the same
    for right in (b, b.real):
        want = torch.linalg.solve(Z.to_dense(), right.to(b.dtype))
        torch.testing.assert_close(Z.solve(right), want)


@pytest.mark.parametrize("n", [7, 220])
def test_classical_matrices(n):
    points = torch.linspace(-1, 1, 2 * n + 1, dtype=torch.float64)
    column, row = torch.randn(2, n, dtype=torch.float64)
    column[0] += 3
    for M in (
        torchldr.Toeplitz(column, row),
        torchldr.matrices.classical.Hankel(column, row.flip(0)),
        torchldr.matrices.classical.Cauchy(points[0 : 2 * n : 2], points[1 : 2 * n : 2]),
        *([torchldr.matrices.classical.Vandermonde(points[0 : 2 * n : 2])] if n < 10 else []),
    ):
        D, b = M.to_dense(), torch.randn(n, 2, dtype=torch.float64)
        for S, A in ((M, D), (M.T, D.mT)):
            assert any("gko" in method for method in torchldr.linalg.solvers(S))
            for method in torchldr.linalg.solvers(S):
                if method not in ("gmres", "conjugate residuals"):  # which may not come to an end
                    assert backward_error(A, torchldr.solve(S, b, method=method), b) <= 1e-13, (M, method)


def test_sums_products_multiples_and_inverses():
    n = 220
    M, N, C = member("toeplitz_like", n, 1), member("toeplitz_like", n, 2, 1), member("circulant", n)
    b = torch.randn(n, 2, dtype=torch.float64)
    for S in (M + N, M @ C, 3.0 * M, -M, M.inverse(), M.inverse().T, (M + C).T, M @ C + N):
        D = S.to_dense()
        condition = float(torch.linalg.cond(D))
        x = S.solve(b)
        assert backward_error(D, x, b) <= 1e-15 * condition + 1e-13, S
    assert torchldr.linalg.solvers(M + N)[0] == "gko"
    inverse = M.inverse()
    torch.testing.assert_close(inverse @ (M @ b), b, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(inverse.T @ (M.T @ b), b, rtol=1e-8, atol=1e-8)


def test_complex_multiples_and_products_of_real_matrices():
    n = 8
    M, F = member("toeplitz_like", n), torchldr.matrices.classical.DFT(n)
    b = torch.randn(n, 2, dtype=torch.complex128)
    for S in ((1 + 2j) * M, M @ F, F @ M, ((1 + 2j) * member("circulant", n)).T):
        torch.testing.assert_close(S.solve(b), torch.linalg.solve(S.to_dense().to(b.dtype), b))


def test_ldr_td_with_subdiagonal_operators_is_solved_as_ldr_sd():
    M = member("ldr_td", 256, 2)
    for part in ("diagonal", "superdiagonal", "corners"):
        for side in "AC":
            M.tensors[f"{part}_{side}"].zero_()
    assert torchldr.linalg.solvers(M)[0] == "gko"
    M.G[0, 0] = M.H[0, 0] = M.G.abs().sum()
    b = torch.randn(256, 1, dtype=torch.float64)
    assert backward_error(M.to_dense(), M.solve(b), b) <= 1e-13


def test_many_right_hand_sides_are_solved_with_the_dense_matrix(monkeypatch):
    M = member("toeplitz_like", 256)
    x = torch.randn(256, 64, dtype=torch.float64)
    b = M @ x
    monkeypatch.setattr(gko, "_run", None)  # what GKO would call
    torch.testing.assert_close(M.solve(b), x, rtol=1e-8, atol=1e-8)


def test_the_choice_can_be_asked_and_made():
    assert torchldr.linalg.solvers(member("toeplitz_like", 64))[0] == "dense"
    assert torchldr.linalg.solvers(member("toeplitz_like", 512))[0] == "gko"
    assert torchldr.linalg.solvers(member("ldr_td", 2048)) == ["gmres", "dense"]
    assert torchldr.linalg.solvers(member("circulant", 64)) == ["fft"]
    M = member("toeplitz_like", 64)
    with pytest.raises(ValueError, match=r"unknown method 'gk' for ToeplitzLike\. Did you mean 'gko'"):
        M.solve(torch.ones(64, dtype=torch.float64), method="gk")


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e160, 1e300])
def test_gmres_at_the_ends_of_the_range(size):
    n = 64
    M = torchldr.Dense(n, n, weight=torch.eye(n, dtype=torch.float64) * 2) + member("ldr_td", n, 1)
    b = torch.randn(n, 2, dtype=torch.float64)
    b[:, 1] = 0
    x = M.solve(b)
    torch.testing.assert_close(M.solve(b * size, method="gmres") / size, x, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close((M * size).solve(b, method="gmres") * size, x, rtol=1e-9, atol=1e-9)


def test_gmres_serves_what_it_suits_and_says_where_it_does_not():
    n = 1100  # above which it comes before the dense matrix
    M = member("ldr_td", n, 1)
    easy = torchldr.Dense(n, n, weight=torch.eye(n, dtype=torch.float64) * 2) + 0.1 * M
    b = torch.randn(n, dtype=torch.float64)
    x = torchldr.solve(easy, b, method="gmres")
    assert (easy @ x - b).norm() <= 1e-12 * b.norm()
    rough = torchldr.solve(easy, b, method="gmres", tol=1e-5)
    assert 1e-13 * b.norm() < (easy @ rough - b).norm() <= 1e-5 * b.norm()
    with pytest.raises(LinAlgError, match="no method reached"):
        torchldr.solve(M, b, method="gmres")


def test_wrong_use():
    M = member("toeplitz_like", 6)
    with pytest.raises(ValueError, match=r"only square systems .* ToeplitzLike of 6 x 4"):
        torchldr.ToeplitzLike.random(6, 4, rank=1).solve(torch.ones(6))
    with pytest.raises(ValueError, match=r"shape \(6,\) or \(\.\.\., 6, k\) .* got \(5,\)"):
        M.solve(torch.ones(5, dtype=torch.float64))
    with pytest.raises(TypeError, match="tensor, got list"):
        M.solve([1.0] * 6)
    with pytest.raises(TypeError, match=r"floating point or complex, got torch\.int64"):
        M.solve(torch.ones(6, dtype=torch.int64))


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", SOLVABLE)
def test_a_right_hand_side_that_is_not_finite_stands_alone(name, wrong):
    M = member(name, 8)
    b = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = M.solve(b)
    b[2, 1] = wrong
    x = M.solve(b.requires_grad_())
    assert x[:, 1].isnan().all()
    torch.testing.assert_close(x[:, ::2], whole[:, ::2])
    x[:, 0].sum().backward()
    assert b.grad.isfinite().all()


@pytest.mark.parametrize(
    "combined",
    [
        lambda D, T: -D,
        lambda D, T: (D + T).T,
        lambda D, T: (D @ Shift(9, 1.0)).recompress(),
        lambda D, T: (D + T) + torchldr.algebra.block([[member("acdc", 9, dtype=torch.float32)]]),
        lambda D, T: D @ (BlockDiagonal([Shift(4, 0.7), Diagonal(torch.ones(5))]) + T),
    ],
)
def test_float32_operators_in_an_expression_are_widened(combined):
    generator = torch.Generator().manual_seed(0)
    draw = lambda n: 1 + torch.rand(n, generator=generator)
    D, T = Diagonal(draw(9)), Tridiagonal(draw(8), 6 + draw(9), draw(8))
    M = combined(D, T)
    b = torch.randn(9, 2, generator=generator, dtype=torch.float64)
    wide = widened(M).to_dense()
    torch.testing.assert_close(wide, M.to_dense().double(), rtol=1e-5, atol=1e-5)
    assert backward_error(wide, M.solve(b), b) < 1e-14


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's account of memory")
def test_memory_is_linear_in_the_size():
    """Of n = 4000 the dense matrix would be 128 megabytes."""
    code = """
import re, torch, torchldr
def peak():  # megabytes; that of getrusage begins with the parent's
    return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) / 1024
for n in (256, 4000):
    before = peak()
    M = torchldr.ToeplitzLike.random(n, n, rank=1, dtype=torch.float64)
    assert torchldr.linalg.solvers(M)[0] == "gko"
    M.solve(torch.randn(n, dtype=torch.float64))
print(peak() - before)
"""
    (ran,) = in_forks([Case(code)])
    assert ran.code == 0, ran.err
    assert float(ran.out) < 32


def test_swapped_arguments():
    with pytest.raises(TypeError, match="solve: M must be a structured matrix, got Tensor"):
        torchldr.solve(torch.randn(3), torchldr.LowRank.random(3, 3, 1))
