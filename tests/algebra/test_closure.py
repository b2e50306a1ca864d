"""Sums, products, transposes, inverses of random members of all classes, against dense linear algebra."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torchldr
from torchldr.algebra import block
from torchldr.algebra.lazy import Composition, Inverse, Scaled, Sum, Transposed
from torchldr.operators import Diagonal, Shift, Subdiagonal
from torchldr.testing import member

CLASSES = list(torchldr.structures().values())
classes, seeds = st.sampled_from(CLASSES), st.integers(0, 2**31)
pairs = st.tuples(classes, classes)
EPS = torch.finfo(torch.float64).eps


def drawn(cls, m, n, seed, rank=1, dtype=torch.float64):
    return member(cls, m, n, min(rank, m, n) if cls.ranked else None, seed=seed, dtype=dtype)


def held(M, W, size):
    """M, its transpose and its displacement, against the dense W whose terms are of this size."""
    m, n = W.shape
    bound = 100 * max(m, n) * EPS * float(size)
    assert M.shape == W.shape
    assert (M.to_dense() - W).abs().max() <= bound
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(3, k, dtype=torch.float64, generator=g) for k in (n, m))
    length = max(m, n)
    assert (M.matmul(x) - x.to(W.dtype) @ W.mT).abs().max() <= bound * length
    assert (M.rmatmul(y) - y.to(W.dtype) @ W).abs().max() <= bound * length
    assert (M.T @ y.mT - W.mT @ y.mT.to(W.dtype)).abs().max() <= bound * length
    known = M.displacement_structure()
    if known is None:
        assert M.rank_bound is None
        return
    G, H = known.generators()
    A, B = known.A.to_dense().to(W.dtype), known.B.to_dense().to(W.dtype)
    R = W - A @ W @ B if known.form == "stein" else A @ W - W @ B
    # An operator may be larger than one, and the rules multiply by it twice.
    wide = (1 + A.abs().sum(1).max()) ** 2 * (1 + B.abs().sum(0).max()) ** 2
    assert G.shape == (known.rank, m)
    assert H.shape == (known.rank, n)
    assert (G.mT @ H - R).abs().max() <= bound * float(wide)
    assert torch.linalg.matrix_rank(R, atol=1e-9 * float(size * wide), rtol=0) <= M.rank_bound


@given(
    pair=st.tuples(classes, classes),
    m=st.integers(1, 24),
    n=st.integers(1, 24),
    seed=seeds,
    r=st.integers(1, 3),
)
@settings(max_examples=120)
def test_sums(pair, m, n, seed, r):
    M, N = drawn(pair[0], m, n, seed, r), drawn(pair[1], m, n, seed + 1)
    size = M.magnitude().max() + N.magnitude().max()
    held(M + N, M.to_dense() + N.to_dense(), size)
    held(M - N, M.to_dense() - N.to_dense(), size)
    held(M.T - N.T, (M.to_dense() - N.to_dense()).mT, size)


@given(
    pair=pairs,
    sizes=st.tuples(*[st.integers(1, 20)] * 3),
    square=st.booleans(),
    seed=seeds,
    r=st.integers(1, 3),
)
@settings(max_examples=60)
def test_products(pair, sizes, square, seed, r):
    m, k, n = sizes[:1] * 3 if square else sizes
    M, N = drawn(pair[0], m, k, seed, r), drawn(pair[1], k, n, seed + 1)
    size = (M.magnitude() @ N.magnitude()).max()
    held(M @ N, M.to_dense() @ N.to_dense(), size)
    other = drawn(pair[1], n, k, seed + 1)
    held(M @ other.T, M.to_dense() @ other.to_dense().mT, (M.magnitude() @ other.magnitude().mT).max())


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
@given(m=st.integers(1, 20), n=st.integers(1, 20), seed=seeds)
@settings(max_examples=3)
def test_transposes_and_multiples(cls, m, n, seed):
    M = drawn(cls, m, n, seed, 2)
    W, size = M.to_dense(), M.magnitude().max()
    held(M.T, W.mT, size)
    assert M.T.T is M
    held(-M, -W, size)
    held(2.5 * M, 2.5 * W, 3 * size)
    held(M * torch.tensor(0.5, dtype=torch.float64), 0.5 * W, size)
    held(M / 4, W / 4, size)
    held(M / torch.tensor(3), W / 3, size)  # whose reciprocal in float32 has fewer digits
    held(torch.tensor(3) * (torch.tensor(0.5) * (Scaled(M, 0.1) / 10)), W * 0.015, size)
    assert type(-M) is cls
    held((1 - 2j) * M, (1 - 2j) * W, 3 * size)
    held(-(M.T + 2 * M.T), -3 * W.mT, 3 * size)


@given(cls=classes, n=st.integers(1, 16), seed=seeds, complex_diagonal=st.booleans(), zeros=st.booleans())
@settings(max_examples=40)
def test_products_with_diagonals(cls, n, seed, complex_diagonal, zeros):
    m = n + seed % 3
    M, g = drawn(cls, m, n, seed), torch.Generator().manual_seed(seed)
    d, e = (0.5 + torch.rand(k, dtype=torch.float64, generator=g) for k in (m, n))
    if zeros:
        d[0] = 0
    if complex_diagonal:
        d = torch.complex(d, -d)
    W = M.to_dense().to(d.dtype)
    size = 10 * M.magnitude().max()
    held(Diagonal(d) @ M, d.unsqueeze(-1) * W, size)
    held(M @ Diagonal(e), W * e, size)
    left = Diagonal(d) @ M
    known = M.displacement_structure()
    if known is not None and not zeros:
        assert left.rank_bound is not None
        assert left.rank_bound <= known.rank  # a diagonal costs no rank


@given(cls=classes, n=st.integers(2, 16), seed=seeds)
@settings(max_examples=30)
def test_operators_are_maps(cls, n, seed):
    M, Z = drawn(cls, n, n, seed), Shift(n, -1.0, dtype=torch.float64)
    S = Subdiagonal(torch.linspace(0.5, 1.5, n - 1, dtype=torch.float64), 0.5)
    size = 4 * M.magnitude().max() + 4
    held(Z @ M, Z.to_dense() @ M.to_dense(), size)
    held(M @ Z.T + M, M.to_dense() @ Z.to_dense().mT + M.to_dense(), size)
    held(M + S, M.to_dense() + S.to_dense(), size)


# The ranks that the rules promise.


def random(name, *args, seed=0, **options):
    g = torch.Generator().manual_seed(seed)
    return torchldr.get_structure(name).random(*args, dtype=torch.float64, generator=g, **options)


@pytest.mark.parametrize(
    "name", ["toeplitz_like", "hankel_like", "ldr_sd", "vandermonde_like", "cauchy_like"]
)
@pytest.mark.parametrize("shape", [(32, 32), (24, 40)])
def test_equal_operators_add_ranks(name, shape):
    M, N = random(name, *shape, 2), random(name, *shape, 3, seed=1)
    if name == "ldr_sd":
        N = N.unchecked(*shape, {**M.tensors, "G": N.G, "H": N.H}, N.options)
    total = M + N
    assert type(total) is type(M)
    assert total.rank == total.rank_bound == 5
    assert total.displacement_rank() == 5
    assert M.T.rank_bound == 2


def test_a_product_of_toeplitz_like_matrices():
    M, N = random("toeplitz_like", 32, 32, 2), random("toeplitz_like", 32, 32, 3, seed=1)
    assert (M @ N).rank_bound == (M @ N).displacement_rank() == 2 + 3 + 1
    assert (M @ N.T).rank_bound == 2 + 3  # Z_{-1}^T Z_{-1} = I: these operators match
    assert (M @ M @ M).rank_bound == 3 * 2 + 2


def test_a_product_of_matching_cauchy_like_matrices():
    M = random("cauchy_like", 20, 20, 2, learn_nodes=True)
    N = random("cauchy_like", 20, 20, 1, learn_nodes=True)
    N = N.unchecked(20, 20, {**N.tensors, "s": M.t, "t": M.t + 2}, N.options)
    assert (M @ N).rank_bound == (M @ N).displacement_rank() == 3


def test_scaled_toeplitz_like_matrices_stay_in_the_family():
    T, S = random("toeplitz_like", 32, 32, 1), random("toeplitz_like", 32, 32, 2, seed=1)
    d = Diagonal(torch.linspace(0.5, 2, 32, dtype=torch.float64))
    left, right = d @ T @ d, d.inverse() @ S
    assert type(left) is type(right) is torchldr.LDRSubdiagonal
    product = left @ right
    assert product.rank_bound == 1 + 2 + 1
    found = product.recompress()
    assert type(found) is torchldr.LDRSubdiagonal
    assert found.rank == 4
    want = d.d.unsqueeze(-1) * (T.to_dense() @ S.to_dense())
    assert (found.to_dense() - want).abs().max() < 1e-12


def test_operators_that_differ_add_the_rank_of_their_difference():
    M, C = random("toeplitz_like", 32, 32, 2), random("circulant", 32, 32, seed=1)
    assert (M + C).rank_bound == (M + C).displacement_rank() == 2 + 0 + 1  # Z_{-1} - Z_1
    L = random("low_rank", 32, 32, 2, seed=2)
    assert (M + L).rank_bound == (L + M).rank_bound == 2 + 2 * 2
    A, B = random("ldr_sd", 40, 40, 1), random("ldr_sd", 40, 40, 1)
    for name in ("subdiagonal_A", "subdiagonal_C"):
        B.tensors[name] = A.tensors[name].clone()
        B.tensors[name][7] += 0.5
    B.tensors["H"] = -A.H
    assert type(A + B) is Sum
    assert (A + B).rank_bound == 1 + 1 + 1 + 1


def test_long_expressions_are_asked_once(monkeypatch):
    """Each part says once what it knows: the work does not double with every operation."""
    T = random("toeplitz_like", 16, 16, 1).T
    asked, ask = [], type(T).displacement_structure
    monkeypatch.setattr(Transposed, "displacement_structure", lambda M: asked.append(M) or ask(M))
    total = T
    for _ in range(30):
        total = total + T
    assert total.rank_bound == 31
    assert len(asked) == 31
    product = T
    for _ in range(30):
        product = T @ product
    assert product.dtype == torch.float64


def test_operators_that_differ_much_claim_no_rank():
    M, N = random("ldr_sd", 32, 32, 1), random("ldr_sd", 32, 32, 1, seed=1)
    for result in (M + N, M @ N, M - random("vandermonde_like", 32, 32, 1)):
        assert result.rank_bound is None
        assert result.displacement_structure() is None
        with pytest.raises(TypeError, match="has no displacement operators of its own"):
            result.generators()
        with pytest.raises(TypeError, match="has no displacement operators of its own"):
            result.recompress()


def test_nearly_singular_operators_are_not_inverted():
    """The middle one of an odd number of Chebyshev points is 6e-17, not 0."""
    M, N = random("cauchy_like", 7, 3, 1), random("vandermonde_like", 3, 7, 1)
    assert 0 < N.nodes.abs().min() < 1e-15
    held(M @ N, M.to_dense() @ N.to_dense(), (M.magnitude() @ N.magnitude()).max())
    held(N @ M, N.to_dense() @ M.to_dense(), (N.magnitude() @ M.magnitude()).max())
    held(N.T + M, N.to_dense().mT + M.to_dense(), M.magnitude().max() + N.magnitude().max())


def test_equal_operators_that_are_learned_apart_are_not_merged():
    """Merging would give the gradient of both to one of them."""
    M = random("ldr_sd", 12, 12, 1)
    tensors = {k: t.clone().requires_grad_() for k, t in M.tensors.items()}
    N = M.unchecked(12, 12, {k: t.detach().clone().requires_grad_() for k, t in tensors.items()}, M.options)
    M = M.unchecked(12, 12, tensors, M.options)
    total = M + N
    assert type(total) is Sum
    total.matmul(torch.ones(1, 12, dtype=torch.float64)).square().sum().backward()
    torch.testing.assert_close(M.subdiagonal_A.grad, N.subdiagonal_A.grad)
    assert N.subdiagonal_A.grad.abs().max() > 0
    assert type(M + M) is torchldr.LDRSubdiagonal


# Closed classes.

N = 24
CLOSED = [
    ("circulant", lambda M, N: M @ N, "circulant"),
    ("circulant", lambda M, N: M + N, "circulant"),
    ("circulant", lambda M, N: M.T @ N, "circulant"),
    ("block_circulant", lambda M, N: M @ N, "block_circulant"),
    ("block_circulant", lambda M, N: M - N.T, "block_circulant"),
    ("low_rank", lambda M, N: M @ N, "low_rank"),
    ("low_rank", lambda M, N: M + N, "low_rank"),
    ("dense", lambda M, N: M @ N - N, "dense"),
    ("dense", lambda M, N: M.T, "dense"),
    ("toeplitz_like", lambda M, N: M - 2 * N, "toeplitz_like"),
    ("hankel_like", lambda M, N: M + N, "hankel_like"),
    ("vandermonde_like", lambda M, N: M + N, "vandermonde_like"),
    ("cauchy_like", lambda M, N: M + N, "cauchy_like"),
    ("cauchy_like", lambda M, N: M.T, "cauchy_like"),
    ("ldr_sd", lambda M, N: M.T - M.T, "ldr_sd"),
    ("ldr_td", lambda M, N: M.T + M.T, "ldr_td"),
]


@pytest.mark.parametrize(("name", "operation", "result"), CLOSED)
def test_closed_classes(name, operation, result):
    ranks = (2,) if torchldr.get_structure(name).ranked else ()
    M, other = random(name, N, N, *ranks), random(name, N, N, *ranks, seed=1)
    got = operation(M, other)
    assert got.name == result
    want = operation(M.to_dense(), other.to_dense())
    assert (got.to_dense() - want).abs().max() <= 1e-12 * (1 + want.abs().max())


@pytest.mark.parametrize("shapes", [((24, 16), (16, 16)), ((16, 16), (16, 9)), ((9, 16), (16, 16))])
def test_cropped_circulants(shapes):
    (m, k), (_, n) = shapes
    M, other = random("circulant", m, k), random("circulant", k, n, seed=1)
    product = M @ other
    assert (product.to_dense() - M.to_dense() @ other.to_dense()).abs().max() < 1e-13
    assert (type(product) is torchldr.Circulant) == (k == max(m, k, n))


def test_cropped_block_circulants():
    M, other = (
        random("block_circulant", 21, 16, block_size=8),
        random("block_circulant", 16, 19, block_size=8),
    )
    assert type(M @ other) is torchldr.BlockCirculant
    held(M @ other, M.to_dense() @ other.to_dense(), 4)
    M = random("block_circulant", 16, 21, block_size=8)
    assert type(M @ random("block_circulant", 21, 16, block_size=8)) is Composition


def test_subclasses_fall_back_to_lazy_results():
    class Mine(torchldr.LowRank):
        pass

    M = Mine(4, 4, G=torch.ones(1, 4), H=torch.ones(1, 4))
    assert type(M.T) is Transposed
    assert type(M + M) is Sum
    assert type(2 * M) is Mine  # every class is multilinear in what carries its scale
    assert M.T.T is M


# Inverses.


@pytest.mark.parametrize(
    "name", ["toeplitz_like", "hankel_like", "cauchy_like", "ldr_sd", "vandermonde_like"]
)
def test_inverses_keep_their_rank(name):
    n = 16
    M = random(name, n, n, 2, **({"learn_nodes": True} if name == "vandermonde_like" else {}))
    if name == "vandermonde_like":  # apart from 1, so that the matrix is not nearly singular
        roots = torch.linspace(-1, 1, n, dtype=torch.float64) * 1.2
        M = M.unchecked(n, n, {**M.tensors, "nodes": roots}, M.options)
    inverse = M.inverse()
    W = torch.linalg.inv(M.to_dense())
    condition = float(torch.linalg.cond(M.to_dense()))
    assert type(inverse) is Inverse
    assert inverse.inverse() is M
    assert inverse.rank_bound == 2
    tolerance = 1e-13 * condition**2
    x = torch.randn(n, 2, dtype=torch.float64)
    assert (inverse @ x - W @ x).abs().max() <= tolerance * W.abs().max()
    assert (inverse.T @ x - W.mT @ x).abs().max() <= tolerance * W.abs().max()
    known = inverse.displacement_structure()
    A, B = known.A.to_dense(), known.B.to_dense()
    R = W - A @ W @ B if known.form == "stein" else A @ W - W @ B
    G, H = inverse.generators(1e-8)
    assert G.shape[0] == 2
    assert (G.mT @ H - R).abs().max() <= tolerance * W.abs().max()


def test_the_inverse_with_nilpotent_operators_is_sketched():
    M = random("ldr_sd", 20, 20, 2)
    for side in "AC":
        M.tensors[f"corner_{side}"] = torch.zeros(1, dtype=torch.float64)
    M.G[0, 0] += 5  # a larger diagonal: M is triangular
    M.H[0, 0] += 5
    W = torch.linalg.inv(M.to_dense())
    inverse, (A, C) = M.inverse(), M.operators()
    R = W - C.mT @ W @ A
    G, H = inverse.generators()
    assert G.shape[0] == 2
    assert (G.mT @ H - R).abs().max() <= 1e-10 * W.abs().max()


def test_the_inverse_of_a_circulant_is_circulant():
    M = random("circulant", 15, 15)
    assert type(M.inverse()) is torchldr.Circulant
    W = torch.linalg.inv(M.to_dense())
    assert (M.inverse().to_dense() - W).abs().max() <= 1e-10 * W.abs().max()


# Precision, memory, errors.


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
def test_float32(cls):
    M, other = drawn(cls, 24, 24, 1, 2, torch.float32), drawn(cls, 24, 24, 2, 1, torch.float32)
    x = torch.randn(24, 3)
    for result, want in (
        (M + other, M.to_dense() + other.to_dense()),
        (M @ other, M.to_dense() @ other.to_dense()),
    ):
        y = result @ x
        assert y.dtype == result.dtype == torch.float32
        assert (y - want @ x).abs().max() <= 1e-4 * (want.abs() @ x.abs()).max()
        if result.rank_bound is not None:
            G, H = result.generators()
            assert G.dtype == H.dtype == torch.float32
            R = result.displacement()
            assert (G.mT @ H - R).abs().max() <= 1e-4 * max(1, R.abs().max())


class Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """The largest tensor that any operation gives."""

    def __init__(self):
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for t in torch.utils._pytree.tree_leaves(result):
            if isinstance(t, torch.Tensor):
                self.entries = max(self.entries, t.numel())
        return result


@pytest.mark.parametrize("name", ["toeplitz_like", "hankel_like", "circulant", "ldr_sd"])
def test_nothing_dense_is_made(name):
    n = 4096  # the stencil of LDR-SD holds tiles of a million entries
    ranks = (1,) if name != "circulant" else ()
    M, other = random(name, n, n, *ranks), random("toeplitz_like", n, n, 1, seed=1)
    with Largest() as largest:
        for result in (
            M + other,
            M @ other,
            other.T @ M,
            block([[M, other], [other, M]]),
            M.T + other @ other,
        ):
            result @ torch.ones(result.in_features, 1, dtype=torch.float64)
            if result.rank_bound is not None:
                result.generators()
    assert largest.entries < n * n / 8


def test_mismatched_learned_operators_are_counted_without_a_dense_matrix():
    n = 2048
    M, other = random("ldr_sd", n, n, 1), random("ldr_sd", n, n, 1, seed=1)
    with Largest() as largest:
        assert (M + other).rank_bound is None
        assert (M @ other).rank_bound is None
    assert largest.entries < n * n / 64


@pytest.mark.parametrize("number", [np.float32(2), np.int64(2), np.float64(2), np.complex64(2)], ids=repr)
def test_numbers_of_numpy_are_numbers(number):
    M = random("toeplitz_like", 4, 4, 1)
    for product in (number * M, M * number, 4 * M / number):
        torch.testing.assert_close(product.to_dense(), 2 * M.to_dense(), check_dtype=False)


def test_a_low_rank_matrix_keeps_its_dtype_beside_an_operator():
    M, A = random("low_rank", 4, 4, 2).to(torch.float32), Subdiagonal(torch.rand(3, dtype=torch.float64))
    for product, W in (
        (A @ M, A.to_dense().float() @ M.to_dense()),
        (M @ A, M.to_dense() @ A.to_dense().float()),
    ):
        assert {t.dtype for t in product.tensors.values()} == {torch.float32}
        torch.testing.assert_close(product.matmul(torch.eye(4)).mT, W)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda M: M + random("low_rank", 3, 4, 1),
            ValueError,
            r"Circulant \+ LowRank: sizes 4 x 4 and 3 x 4",
        ),
        (lambda M: M @ random("low_rank", 3, 4, 1), ValueError, "Circulant @ LowRank: sizes 4 x 4 and 3 x 4"),
        (
            lambda M: M @ random("toeplitz_like", 4, 4, 1).to(torch.float32),
            TypeError,
            "dtypes .* convert one",
        ),
        (lambda M: M @ random("low_rank", 4, 4, 1).to(torch.float32), TypeError, "dtypes .* convert one"),
        (lambda M: random("low_rank", 4, 4, 1).to(torch.float32) @ M, TypeError, "dtypes .* convert one"),
        (lambda M: random("circulant", 3, 4).inverse(), ValueError, "only a square matrix has an inverse"),
        (lambda M: M + 3, TypeError, "unsupported operand"),
        (lambda M: M * torch.ones(2), TypeError, ""),
        (lambda M: M @ "x", TypeError, "unsupported operand"),
        (lambda M: M @ np.ones((4, 2)), TypeError, "Circulant: expected a tensor, got an array"),
        (lambda M: np.ones((2, 4)) @ M, TypeError, "unsupported operand"),
        (lambda M: np.ones(3) * M, TypeError, "unsupported operand"),
        (lambda M: M.to(torch.int32), TypeError, "Circulant: dtype must be real floating point"),
        (lambda M: M.random(4, 4, dtype="float32"), TypeError, "dtype must be one of torch"),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words or None):
        call(random("circulant", 4, 4))
