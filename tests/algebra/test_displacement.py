"""Displacement by any operators, and the way back."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

import torchldr
from torchldr.algebra import displacement, displacement_rank, from_displacement, generators
from torchldr.operators import DenseOperator, Diagonal, Subdiagonal, Tridiagonal
from torchldr.testing import member

Shift = partial(torchldr.operators.Shift, dtype=torch.float64)

G13 = torch.ones(1, 3)
STACK = torchldr.Dense(3, 3, weight=torch.ones(2, 3, 3))
sizes, seeds, forms = st.integers(2, 10), st.integers(0, 2**31), st.sampled_from(["stein", "sylvester"])
CLASSES = list(torchldr.structures().values())
WITHOUT_OPERATORS = ("dense", "fastfood", "acdc", "monarch", "kronecker", "blast")


def drawn(seed: int, *shape: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=g)


def dense_displacement(M, A, B, form):
    A, B = (X.to_dense() if isinstance(X, torchldr.operators.Operator) else X for X in (A, B))
    return M - A @ M @ B if form == "stein" else A @ M - M @ B


def operator_pair(m: int, n: int, seed: int, kind: int):
    """Operators whose spectra are apart in both forms: near radius 1/2 on the left and 1 on the right."""
    d = torch.linspace(0.2, 0.6, m, dtype=torch.float64)
    e = torch.linspace(0.9, 1.2, n, dtype=torch.float64)
    if kind == 0:
        return Diagonal(d), Diagonal(e)
    if kind == 1:
        return Shift(m, 0.5**m), Shift(n, -1.0).T
    if kind == 2:
        s = 0.5 + 0.05 * drawn(seed, m - 1)
        return Subdiagonal(s, 0.4), Shift(n, 1.0).T
    if kind == 3:
        W = drawn(seed, n, n)
        return Diagonal(d), DenseOperator(W @ torch.diag(e) @ torch.linalg.inv(W))
    return Tridiagonal(0.05 * drawn(seed, m - 1), d, 0.05 * drawn(seed + 1, m - 1)), Diagonal(e)


@given(m=sizes, n=sizes, seed=seeds, kind=st.integers(0, 4), form=forms, as_tensor=st.booleans())
@settings(max_examples=40)
def test_displacement_is_the_dense_formula(m, n, seed, kind, form, as_tensor):
    A, B = operator_pair(m, n, seed, kind)
    M = drawn(seed, m, n)
    want = dense_displacement(M, A, B, form)
    given_A, given_B = (A.to_dense(), B.to_dense()) if as_tensor else (A, B)
    size = M.abs().max() * (1 + A.to_dense().abs().sum(1).max()) * (1 + B.to_dense().abs().sum(0).max())
    assert (displacement(M, given_A, given_B, form) - want).abs().max() <= 1e-14 * size


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
def test_members_have_the_rank_of_their_class(cls):
    for m, n in ((12, 12), (9, 14), (14, 9), (16, 6)):
        M = member(cls, m, n, 2 if cls.ranked else None, seed=3)
        known = M.displacement_structure()
        if cls.name in WITHOUT_OPERATORS:
            assert known is None
            assert M.rank_bound is None
            with pytest.raises(TypeError, match=f"{cls.__name__} has no displacement operators"):
                M.displacement()
            continue
        G, H = known.generators()
        assert G.shape == (M.rank_bound, m)
        assert H.shape == (M.rank_bound, n)
        R = dense_displacement(M.to_dense(), known.A, known.B, known.form)
        size = float(M.magnitude().max()) * 4
        assert (G.mT @ H - R).abs().max() <= 1e-13 * size * max(m, n)
        torch.testing.assert_close(M.displacement(), R, rtol=0, atol=1e-13 * size * max(m, n))
        rank = int((torch.linalg.svdvals(R) > 1e-10 * size).sum())
        assert M.displacement_rank(1e-10) == rank <= M.rank_bound
        # The bound is reached, but for LDR-TD where both terms of the identity must be in play.
        if cls.name not in ("ldr_td", "block_circulant"):
            assert rank == M.rank_bound


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
@given(seed=seeds, form=forms)
@settings(max_examples=3)
def test_generators_by_other_operators(cls, seed, form):
    """Through the rules or through the dense matrix, the generators give the displacement."""
    m, n = 24, 20
    M = member(cls, m, n, 1 if cls.ranked else None, seed=seed)
    A, B = Shift(m, -0.5), Shift(n, 1.0).T
    G, H = generators(M, A, B, form=form)
    R = dense_displacement(M.to_dense(), A, B, form)
    size = float(M.magnitude().max())
    assert (G.mT @ H - R).abs().max() <= 1e-12 * size * m
    # Singular values may lie on either side of a tolerance: between two of them the ranks must be.
    least, most = (int((torch.linalg.svdvals(R) > tol * size).sum()) for tol in (1e-8, 1e-13))
    for known in (M, M.to_dense()):
        assert least <= displacement_rank(known, A, B, 1e-11, form) <= most


@given(m=sizes, n=sizes, r=st.integers(1, 3), seed=seeds, kind=st.integers(0, 4), form=forms)
@settings(max_examples=40)
def test_there_and_back(m, n, r, seed, kind, form):
    A, B = operator_pair(m, n, seed, kind)
    G, H = drawn(seed, r, m), drawn(seed + 1, r, n)
    M = from_displacement(A, B, G, H, form)
    R = dense_displacement(M, A, B, form)
    assert (R - G.mT @ H).abs().max() <= 1e-11 * float((G.mT @ H).abs().max() + M.abs().max())
    P, Q = generators(M, A, B, tol=1e-10, form=form)
    assert P.shape[0] <= min(r, m, n)
    again = from_displacement(A, B, P, Q, form)
    assert (again - M).abs().max() <= 1e-9 * float(M.abs().max())


@given(m=sizes, n=sizes, r=st.integers(1, 3), seed=seeds, side=st.sampled_from(["left", "right", "both"]))
@settings(max_examples=25)
def test_nilpotent_operators_give_the_krylov_sum(m, n, r, seed, side):
    A = Shift(m) if side != "right" else Subdiagonal(drawn(seed, m - 1), 0.7)
    C = Shift(n) if side != "left" else Subdiagonal(drawn(seed + 2, n - 1), -0.4)
    G, H = drawn(seed, r, m), drawn(seed + 1, r, n)
    M = from_displacement(A, C.T, G, H)
    size = float(G.abs().max() * H.abs().max())
    assert (displacement(M, A, C.T) - G.mT @ H).abs().max() <= 1e-12 * max(size, float(M.abs().max()))


@pytest.mark.parametrize(
    "cls", [c for c in CLASSES if c.ranked and c.name not in ("low_rank", "ldr_td", *WITHOUT_OPERATORS)]
)
def test_members_are_known_by_their_displacement(cls):
    M = member(cls, 10, 14, 2, seed=5)
    known = M.displacement_structure()
    W = from_displacement(known.A, known.B, *M.generators(), known.form)
    assert (W - M.to_dense()).abs().max() <= 1e-9 * float(M.magnitude().max())


@pytest.mark.parametrize("kind", range(5))
@pytest.mark.parametrize("form", ["stein", "sylvester"])
def test_gradients(kind, form):
    m, n = 4, 3
    G, H = drawn(1, 2, m).requires_grad_(), drawn(2, 2, n).requires_grad_()
    A, B = (X.to_dense().requires_grad_() for X in operator_pair(m, n, 0, kind))
    assert gradcheck(lambda A, B, G, H: from_displacement(A, B, G, H, form), (A, B, G, H), atol=1e-6)

    def rebuilt(M, A, B):
        P, Q = generators(M, A, B, tol=1e-10, form=form)
        assert P.shape[0] == 2
        return P.mT @ Q

    # Exact along directions that keep the rank: those of G and H.
    def along(G, H):
        W = from_displacement(A.detach(), B.detach(), G, H, form)
        return rebuilt(W, A.detach(), B.detach())

    assert gradcheck(along, (G, H), atol=1e-6)


def test_second_derivatives():
    A, B = (X.to_dense().requires_grad_() for X in operator_pair(3, 3, 0, 3))
    G, H = drawn(1, 1, 3).requires_grad_(), drawn(2, 1, 3).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda *t: from_displacement(*t), (A, B, G, H), atol=1e-5)


@pytest.mark.parametrize("n", [5, 6])
def test_spectra_that_meet(n):
    G, H = drawn(0, 1, n), drawn(1, 1, n)
    with pytest.raises(
        ValueError, match="closest pair of eigenvalues is 1 of A and 1 of B: their product is 1"
    ):
        from_displacement(Shift(n, 1.0, dtype=torch.float64), Shift(n, 1.0, dtype=torch.float64).T, G, H)
    D = Diagonal(torch.arange(1.0, n + 1, dtype=torch.float64))
    E = Diagonal(torch.tensor([0.5, 3.0], dtype=torch.float64))
    with pytest.raises(ValueError, match="is 3 of A and 3 of B: they are the same"):
        from_displacement(D, E, G, H[:, :2], form="sylvester")
    with pytest.raises(ValueError, match=r"is 2 of A and 0.5 of B: their product is 1"):
        from_displacement(D, E, G, H[:, :2])


def test_complex_operators():
    """A Vandermonde matrix of roots of unity is the DFT: its displacement by the roots and Z_1 is 0."""
    n = 8
    roots = torch.polar(torch.ones(n).double(), -2 * torch.pi * torch.arange(n).double() / n)
    F = roots.unsqueeze(-1) ** torch.arange(n)
    assert displacement_rank(F, Diagonal(roots), Shift(n, 1.0).T) == 0
    assert displacement_rank(F, Diagonal(roots), Shift(n).T) == 1
    G, H = generators(F, Diagonal(roots), Shift(n).T)
    W = from_displacement(Diagonal(roots), Shift(n).T, G, H)
    assert (W - F).abs().max() < 1e-13
    M = torchldr.ToeplitzLike.random(n, n, 1, dtype=torch.float64)
    W = generators(M, Diagonal(roots), Shift(n).T)
    want = M.to_dense() - torch.diag(roots) @ (M.to_dense() @ Shift(n).to_dense().mT).to(roots.dtype)
    assert (W[0].mT @ W[1] - want).abs().max() < 1e-13


def test_float32_keeps_its_dtype():
    M, Shift = torchldr.ToeplitzLike.random(16, 16, 2), torchldr.operators.Shift
    G, H = M.generators()
    assert G.dtype == H.dtype == displacement(M, Shift(16), Shift(16).T).dtype == torch.float32
    assert M.displacement_rank() == 2
    assert from_displacement(Shift(16), Shift(16).T, G, H).dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: displacement(torch.ones(3, 3), Shift(4), Shift(3)), ValueError, "A must be 3 x 3"),
        (lambda: displacement(torch.ones(3), Shift(3), Shift(3)), ValueError, "two axes"),
        (lambda: displacement(STACK, Shift(3), Shift(3)), ValueError, r"two axes, got shape \(2, 3, 3\)"),
        (
            lambda: displacement(torch.ones(3, 3), Shift(3), Shift(3), "steen"),
            ValueError,
            "one of stein, sylv",
        ),
        (lambda: displacement([1], Shift(3), Shift(3)), TypeError, "tensor or a linear map, got list"),
        (lambda: displacement(torch.ones(3, 3), 3, Shift(3)), TypeError, "A must be an Operator"),
        (lambda: from_displacement(Shift(3), Shift(3), G13, torch.ones(2, 3)), ValueError, "rows"),
        (lambda: from_displacement(Shift(3), Shift(3), torch.ones(3), torch.ones(3)), ValueError, "two axes"),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("form", ["stein", "sylvester"])
@pytest.mark.parametrize("n", [4, 9])
def test_operators_without_an_eigenbasis(n, form):
    """Jordan blocks on both sides: held to the linear system of n^2 unknowns, values and gradients."""
    eye, below = torch.eye(n, dtype=torch.float64), torch.diag(torch.ones(n - 1, dtype=torch.float64), -1)
    A, B = (
        (2 * eye + below, 0.25 * eye + below.mT)
        if form == "sylvester"
        else (0.3 * eye + below, 0.2 * eye + below)
    )
    A, B = A.contiguous().requires_grad_(), B.contiguous().requires_grad_()
    g = torch.Generator().manual_seed(n)
    G, H = (torch.randn(2, n, dtype=torch.float64, generator=g) for _ in range(2))
    found = from_displacement(A, B, G, H, form)
    right = B.mT.contiguous()
    pair = torch.kron(A, right) if form == "stein" else torch.kron(eye, right)
    system = torch.eye(n * n, dtype=torch.float64) - pair if form == "stein" else torch.kron(A, eye) - pair
    want = torch.linalg.solve(system, (G.mT @ H).flatten()).reshape(n, n)
    close = {"rtol": 1e-7, "atol": 1e-7 * float(want.detach().abs().max())}
    torch.testing.assert_close(found, want, **close)
    for ours, theirs in zip(*(torch.autograd.grad(M.sum(), (A, B)) for M in (found, want)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6 * float(theirs.abs().max()))
