"""Fewer generators, and the class that a displacement belongs to."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

import torchldr
from torchldr.algebra import from_displacement
from torchldr.algebra.recompress import Recompressed
from torchldr.algebra.structure import DisplacementStructure, reduce
from torchldr.matrices import LinearMap
from torchldr.matrices.classical import Vandermonde
from torchldr.operators import Diagonal, Shift, Subdiagonal

seeds = st.integers(0, 2**31)


def random(name, *args, seed=0, **options):
    g = torch.Generator().manual_seed(seed)
    return torchldr.get_structure(name).random(*args, dtype=torch.float64, generator=g, **options)


@given(r=st.integers(0, 4), extra=st.integers(0, 4), m=st.integers(4, 12), n=st.integers(4, 12), seed=seeds)
@settings(max_examples=40)
def test_reduce(r, extra, m, n, seed):
    """Copies and combinations of generators go; G^T H stays."""
    g = torch.Generator().manual_seed(seed)
    G, H = (torch.randn(r, k, dtype=torch.float64, generator=g) for k in (m, n))
    mix = torch.randn(r + extra, r, dtype=torch.float64, generator=g)
    P = mix @ G
    Q = torch.linalg.pinv(mix).mT @ H if r else torch.zeros(extra, n, dtype=torch.float64)
    for shuffle in (1, 1 + 2j):
        P1, Q1 = shuffle * P, Q / shuffle
        A, B = reduce(P1, Q1, 1e-10)
        assert A.shape == (r, m)
        assert B.shape == (r, n)
        want = G.mT @ H
        assert ((A.mT @ B) - want).abs().max() <= 1e-11 * (1 + want.abs().max())
        if r:
            gram = (A.conj() @ A.mT).abs()
            assert (gram - torch.diag(gram.diagonal())).max() <= 1e-11 * gram.max()


def test_reduce_keeps_what_the_tolerance_says():
    G = torch.diag(torch.tensor([1.0, 1e-3, 1e-6], dtype=torch.float64))
    H = torch.eye(3, dtype=torch.float64)
    assert [reduce(G, H, tol)[0].shape[0] for tol in (None, 1e-4, 1e-2)] == [3, 2, 1]


@pytest.mark.parametrize("structure", ["toeplitz_like", "hankel_like"])
@pytest.mark.parametrize(
    "name", ["block_circulant", "cauchy_like", "circulant", "ldr_sd", "low_rank", "toeplitz_like"]
)
def test_a_class_with_fixed_operators_can_be_asked_for(name: str, structure: str):
    ranked = torchldr.get_structure(name).ranked
    M = random(name, 12, 10, *([2] if ranked else []))
    N = M.recompress(structure=structure)
    assert type(N) is torchldr.get_structure(structure)
    torch.testing.assert_close(N.to_dense(), M.to_dense(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "name", ["low_rank", "toeplitz_like", "hankel_like", "ldr_sd", "ldr_td", "cauchy_like"]
)
def test_members_lose_what_they_do_not_need(name):
    M = random(name, 20, 16, 2)
    twice = M + M
    assert twice.rank == 4
    less = twice.recompress()
    assert type(less) is type(M)
    assert less.rank == 2
    assert (less.to_dense() - 2 * M.to_dense()).abs().max() <= 1e-12
    nothing = (M - M).recompress()
    assert nothing.rank == 1
    assert nothing.to_dense().abs().max() <= 1e-12


T, S = random("toeplitz_like", 32, 32, 2), random("toeplitz_like", 32, 32, 1, seed=1)
C, L = random("circulant", 32, 32, seed=2), random("low_rank", 32, 32, 1, seed=3)
TALL = random("toeplitz_like", 32, 24, 1, seed=5)
HANKEL, D = (
    random("hankel_like", 32, 32, 2, seed=6),
    Diagonal(torch.linspace(0.5, 2, 32, dtype=torch.float64)),
)
CASES = {
    "a product of Toeplitz-like": (T @ S, "toeplitz_like", 4),
    "three of them": (T @ S @ S, "toeplitz_like", 6),
    "Toeplitz-like and circulant": (T + C, "toeplitz_like", 3),
    "circulant times Toeplitz-like": (C @ T, "toeplitz_like", 2),
    "Toeplitz-like and low-rank": (T + L, "toeplitz_like", 4),
    "not square": (T @ TALL, "toeplitz_like", 4),
    "a transpose": (T.T, "ldr_sd", 2),
    "an inverse": (T.inverse(), "ldr_sd", 2),
    "Toeplitz-like times Hankel-like": (T @ HANKEL, "hankel_like", 5),
    "T S^-1 T": (T @ S.inverse() @ T, "toeplitz_like", 5),
    "Hankel-like times Hankel-like": (HANKEL @ HANKEL, "toeplitz_like", 5),
    "Hankel-like and low-rank": (HANKEL + L, "hankel_like", 4),
    "a scaled Toeplitz-like": (D @ T + D @ T, "ldr_sd", 2),
    "all circulant": (T - T + C @ C + C.T, None, None),
    "an operator": (Shift(32, 1.0, dtype=torch.float64) @ C, "circulant", None),
}


@pytest.mark.parametrize("case", CASES)
def test_the_class_of_a_result(case):
    M, name, rank = CASES[case]
    found = M.recompress()
    if name is not None:
        assert found.name == name
    if rank is not None:
        assert found.rank == rank
    W = M.to_dense()
    assert (found.to_dense() - W).abs().max() <= 1e-9 * W.abs().max()
    x = torch.ones(W.shape[1], 2, dtype=torch.float64)
    assert (found @ x - W @ x).abs().max() <= 1e-9 * W.abs().sum(1).max()


class Given(LinearMap):
    """A dense matrix that is told its displacement."""

    def __init__(self, A, B, G, H, form):
        self.W = from_displacement(A, B, G, H, form)
        self.out_features, self.in_features = self.W.shape
        self.known = DisplacementStructure(A, B, form, G.shape[0], lambda: (G, H))

    dtype, device = torch.float64, torch.device("cpu")

    def matmul(self, x):
        return x @ self.W.mT

    def rmatmul(self, y):
        return y @ self.W

    def to_dense(self):
        return self.W

    def displacement_structure(self):
        return self.known


@given(m=st.integers(2, 14), n=st.integers(2, 14), seed=seeds, kind=st.integers(0, 4))
@settings(max_examples=40)
def test_members_are_built_from_their_displacement(m, n, seed, kind):
    g = torch.Generator().manual_seed(seed)
    G, H = (torch.randn(1, k, dtype=torch.float64, generator=g) for k in (m, n))
    d = torch.linspace(-0.9, 0.8, m, dtype=torch.float64)
    s = 0.8 + 0.4 * torch.rand(m - 1, dtype=torch.float64, generator=g)
    Z = Shift(n, 0.0, dtype=torch.float64)
    A, B, form, name = [
        (Diagonal(d), Z.T, "stein", "vandermonde_like"),
        (Diagonal(d), Diagonal(2 + torch.linspace(0, 1, n, dtype=torch.float64)), "sylvester", "cauchy_like"),
        (Subdiagonal(s, 0.5), Shift(n, -0.7, dtype=torch.float64).T, "stein", "ldr_sd"),
        (Subdiagonal(s, 0.0), Shift(n, 1.0, dtype=torch.float64).T, "stein", "ldr_sd"),
        (Diagonal(0 * d), Z.T, "stein", "low_rank"),
    ][kind]
    M = Given(A, B, G, H, form)
    found = M.recompress()
    assert found.name == name
    assert found.rank == 1
    assert (found.to_dense() - M.W).abs().max() <= 1e-11 * M.W.abs().max()


def test_other_operators_keep_their_products():
    M = random("ldr_td", 32, 32, 1)
    N = M.unchecked(32, 32, {**M.tensors, "corners_A": M.corners_A + 1}, M.options)
    total = M + 2 * N  # no class is built from a displacement by tridiagonal operators
    assert total.rank_bound == 2 + 2 + 2
    less = total.recompress()
    assert type(less) is Recompressed
    assert less.rank_bound == less.displacement_rank() < 6
    x = torch.ones(32, dtype=torch.float64)
    assert torch.equal(less @ x, total @ x)
    assert torch.equal(less.T @ x, total.T @ x)


@pytest.mark.parametrize("case", ["sum", "product", "transpose", "low rank", "block"])
def test_gradients_through_rules_and_recompression(case):
    n = 3 if case == "block" else 6
    x = torch.ones(1, 2 * n if case == "block" else n, dtype=torch.float64)
    g = torch.Generator().manual_seed(0)
    tensors = [torch.randn(1, n, dtype=torch.float64, generator=g).requires_grad_() for _ in range(4)]

    def result(G, H, P, Q):
        M, N = torchldr.ToeplitzLike(n, n, G=G, H=H), torchldr.ToeplitzLike(n, n, G=P, H=Q)
        return {
            "sum": lambda: M + torchldr.LowRank(n, n, G=P, H=Q),
            "product": lambda: M @ N,
            "transpose": lambda: M.T,
            "low rank": lambda: M @ torchldr.LowRank(n, n, G=P, H=Q),
            "block": lambda: torchldr.algebra.block([[M, N], [N, M]]),
        }[case]()

    def everything(*tensors):
        M = result(*tensors)
        known = M.displacement_structure()
        G, H = known.generators()
        return M.matmul(x), G.mT @ H, M.recompress(1e-9).matmul(x)

    used = tensors[:2] if case == "transpose" else tensors
    fixed = [] if case != "transpose" else [t.detach() for t in tensors[2:]]
    assert gradcheck(lambda *t: everything(*t, *fixed), used, atol=1e-6)


def test_no_member_whose_powers_of_nodes_cancel():
    """The node 0.01 of V is 100 in the class of its inverse's transpose, where errors were 13 times M."""
    V = Vandermonde(torch.linspace(-1, 1, 9, dtype=torch.float64) + 0.01)
    inverse = torch.linalg.inv(V.to_dense()).mT
    found = V.inverse().T.recompress()
    torch.testing.assert_close(found.to_dense(), inverse, rtol=0, atol=1e-9 * float(inverse.abs().max()))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: T.T.recompress(structure="ldr_sd"), ValueError, "'toeplitz_like' or 'hankel_like'"),
        (lambda: (T @ S).recompress(structure="toeplitz"), ValueError, "Did you mean 'toeplitz_like'"),
        (lambda: random("fastfood", 4, 4).recompress(), TypeError, "Fastfood has no displacement operators"),
        (
            lambda: random("acdc", 4, 4).recompress(structure="toeplitz_like"),
            TypeError,
            "ACDC has no displacement operators near those of 'toeplitz_like'",
        ),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("combine", [lambda M, N: M + N, lambda M, N: M @ N, lambda M, N: M + N.T])
@pytest.mark.parametrize("other", ["ldr_sd", "toeplitz_like"])
def test_operators_learned_apart_are_not_taken_for_one(combine, other):
    """New layers of LDR-SD have shifts for operators: equal values, each with a derivative of its own."""
    M = torchldr.StructuredLinear(16, 16, structure="ldr_sd", dtype=torch.float64).matrix()
    N = torchldr.StructuredLinear(16, 16, structure=other, dtype=torch.float64).matrix()
    both = combine(M, N)
    with pytest.raises(TypeError, match="learned apart"):
        both.recompress()
    with torch.no_grad():
        assert both.rank_bound < 8
        torch.testing.assert_close(both.recompress().to_dense(), both.to_dense())
    assert (M.inverse() + (2 * M).inverse()).rank_bound == 2  # by the very same tensors
