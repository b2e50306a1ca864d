"""Toeplitz, Hankel, Vandermonde, Cauchy and convolutions: entries, products, ranks, exact representations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import conv2d

import torchldr
from torchldr import BlockCirculant, Circulant
from torchldr.algebra import convert
from torchldr.algebra.known import known_displacement
from torchldr.matrices.classical.base import ClassicalMatrix
from torchldr.matrices.classical.convolution import BORDERS, MODES, Convolution2d, convolution1d
from torchldr.matrices.classical.families import Cauchy, Hankel, Toeplitz, Vandermonde

Draw = Callable[..., Tensor]


def drawing(seed: int, dtype: torch.dtype = torch.float64) -> Draw:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator, dtype=dtype)


def nodes(n: int, seed: int) -> Tensor:
    """Distinct points of (-1, 1)."""
    return torch.linspace(-0.95, 0.9, n, dtype=torch.float64) + 0.02 * torch.rand(
        1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


MAKERS: dict[str, Callable[[int, int, int], ClassicalMatrix]] = {
    "toeplitz": lambda m, n, seed: Toeplitz(drawing(seed)(m), drawing(seed + 1)(n)),
    "complex toeplitz": lambda m, n, seed: Toeplitz(drawing(seed, torch.complex128)(m), drawing(seed + 1)(n)),
    "hankel": lambda m, n, seed: Hankel(drawing(seed)(m), drawing(seed + 1)(n)),
    "vandermonde": lambda m, n, seed: Vandermonde(nodes(m, seed), n),
    "complex vandermonde": lambda m, n, seed: Vandermonde(
        torch.polar(torch.full((m,), 0.9, dtype=torch.float64), drawing(seed)(m)), n
    ),
    "cauchy": lambda m, n, seed: Cauchy(nodes(m, seed), nodes(n, seed) + 3),
    "convolution1d": lambda m, n, seed: convolution1d(drawing(seed)(m), n, MODES[seed % 3]),
    "convolution2d": lambda m, n, seed: Convolution2d(
        drawing(seed)(1 + m % 3, 1 + n % 3, 3, 1 + 2 * (m % 2)), 3 + m % 4, 3 + n % 4, BORDERS[seed % 3]
    ),
}
sizes = st.integers(1, 40)
seeds = st.integers(0, 2**20)


def tolerance(M: Tensor, x: Tensor) -> Tensor:
    """Rounding errors of a product relative to |M| |x|: log factors of FFTs, and sums of n terms."""
    return 4 * (8 + M.shape[-1]) * torch.finfo(torch.float64).eps * M.abs().max() * x.abs().sum()


def rank(D: Tensor, scale: float) -> int:
    """Numerical rank, singular values measured by the matrix that was displaced."""
    return int((torch.linalg.svdvals(D) > 1e-12 * scale * max(D.shape)).sum())


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=15, deadline=None)
@given(m=sizes, n=sizes, seed=seeds)
def test_products_are_those_of_the_dense_matrix(name: str, m: int, n: int, seed: int):
    M = MAKERS[name](m, n, seed)
    W = M.to_dense()
    assert W.shape == M.shape
    assert W.dtype == M.dtype
    x, y = drawing(seed + 2)(2, 3, M.in_features), drawing(seed + 3)(M.out_features)
    for got, wanted, scale in (
        (M.matmul(x), x.to(W.dtype) @ W.mT, tolerance(W, x)),
        (M.rmatmul(y), y.to(W.dtype) @ W, tolerance(W.mT, y)),
        (M @ x[0].mT, W @ x[0].mT.to(W.dtype), tolerance(W, x[0])),
        (M.T.matmul(y), W.mT @ y.to(W.dtype), tolerance(W.mT, y)),
        (
            M.matmul(torch.complex(x, -x)),
            torch.complex(x, -x) @ W.mT.to(torch.complex128),
            2 * tolerance(W, x),
        ),
    ):
        assert got.shape == wanted.shape
        assert (got - wanted).abs().max() <= scale


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=15, deadline=None)
@given(m=sizes, n=sizes, seed=seeds)
def test_the_displacement_rank_is_as_stated(name: str, m: int, n: int, seed: int):
    M = MAKERS[name](m, n, seed)
    A, B, form = M.operators()
    W, A, B = M.to_dense(), A.to_dense().to(M.dtype), B.to_dense().to(M.dtype)
    D = W - A @ W @ B if form == "stein" else A @ W - W @ B
    torch.testing.assert_close(M.displacement(), D)
    G, H = M.displacement_structure().generators()
    assert len(G) == len(H) == M.displacement_rank_bound
    scale = float(
        torch.linalg.matrix_norm(A, 2) * torch.linalg.matrix_norm(W, 2) + torch.linalg.matrix_norm(W @ B, 2)
    )
    assert (G.mT @ H - D).abs().max() <= 1e-13 * scale * max(M.shape)
    assert rank(D, scale) <= M.displacement_rank_bound <= min(M.shape)


@pytest.mark.parametrize(
    ("name", "bound"), [("toeplitz", 2), ("hankel", 2), ("vandermonde", 1), ("cauchy", 1)]
)
def test_the_bound_is_reached(name: str, bound: int):
    M = MAKERS[name](9, 7, 0)
    assert M.displacement_rank_bound == bound == rank(M.displacement(), 1.0)


def test_entries_are_scipys():
    draw = drawing(0)
    c, r = draw(5), draw(7)
    np.testing.assert_array_equal(Toeplitz(c, r).to_dense(), scipy.linalg.toeplitz(c, r))
    np.testing.assert_array_equal(Toeplitz(c).to_dense(), scipy.linalg.toeplitz(c))
    np.testing.assert_array_equal(Hankel(c, r).to_dense(), scipy.linalg.hankel(c, r))
    np.testing.assert_allclose(Vandermonde(c, 4).to_dense(), np.vander(c, 4, increasing=True), rtol=1e-14)
    assert torch.equal(Cauchy(c, r).to_dense(), 1 / (c[:, None] - r))
    np.testing.assert_array_equal(Circulant.from_column(c).to_dense(), scipy.linalg.circulant(c))
    blocks = draw(2, 3, 4)
    wanted = np.block([[scipy.linalg.circulant(b) for b in row] for row in blocks.numpy()])
    np.testing.assert_array_equal(BlockCirculant.from_columns(blocks).to_dense(), wanted)


@pytest.mark.parametrize("mode", MODES)
@given(f=st.integers(1, 12), n=st.integers(1, 12))
@settings(max_examples=20, deadline=None)
def test_convolution_is_numpys(mode: str, f: int, n: int):
    taps, x = drawing(f)(f), drawing(n + 50)(n)
    np.testing.assert_allclose(
        convolution1d(taps, n, mode).to_dense() @ x, np.convolve(taps, x, mode), atol=1e-13
    )


def test_two_dimensional_convolution_is_torchs():
    weight, x = drawing(0)(4, 3, 3, 5), drawing(1)(2, 3, 6, 7)
    y = Convolution2d(weight, 6, 7).to_dense() @ x.flatten(1).mT
    torch.testing.assert_close(y.mT.reshape(2, 4, 6, 7), conv2d(x, weight, padding=(1, 2)))
    around = torch.nn.functional.pad(x, (2, 2, 1, 1), "circular")
    y = Convolution2d(weight, 6, 7, "circular").to_dense() @ x.flatten(1).mT
    torch.testing.assert_close(y.mT.reshape(2, 4, 6, 7), conv2d(around, weight))


def test_a_flat_filter_is_toeplitz_and_right_where_the_image_has_a_margin():
    """The paper's footnote: taps on the diagonals a w + b; with a margin of zeros it is the convolution."""
    weight, (h, w) = drawing(0)(1, 1, 3, 3), (5, 6)
    flat = Convolution2d(weight, h, w, "flat").to_dense()
    offsets = {a * w + b for a in (-1, 0, 1) for b in (-1, 0, 1)}
    for d in range(1 - h * w, h * w):
        diagonal = flat.diagonal(d)
        assert torch.equal(diagonal, diagonal[:1].expand_as(diagonal))
        assert bool(diagonal[0] != 0) == (d in offsets)
    image = torch.zeros(h, w, dtype=torch.float64)
    image[:, 1:-1] = drawing(1)(h, w - 2)
    wanted = Convolution2d(weight, h, w).to_dense() @ image.flatten()
    inner = (slice(None), slice(1, -1))
    torch.testing.assert_close((flat @ image.flatten()).view(h, w)[inner], wanted.view(h, w)[inner])


WITHOUT_OPERATORS = ["dense", "fastfood", "monarch", "kronecker", "blast"]


@settings(max_examples=25, deadline=None)
@given(m=sizes, n=sizes, seed=seeds, r=st.integers(1, 4))
def test_every_structured_class_has_the_rank_it_claims(m: int, n: int, seed: int, r: int):
    generator = torch.Generator().manual_seed(seed)
    for name in torchldr.structures():
        if name in WITHOUT_OPERATORS:
            continue
        cls = torchldr.get_structure(name)
        M = cls.random(m, n, min(r, m, n) if cls.ranked else None, dtype=torch.float64, generator=generator)
        (A, B, form), bound = known_displacement(M)
        W = M.to_dense()
        A, B = A.to_dense(), B.to_dense()
        D = W - A @ W @ B if form == "stein" else A @ W - W @ B
        sizes = [float(torch.linalg.matrix_norm(t, 2)) for t in (A, W, B)]
        # Cauchy and Vandermonde entries are computed from rounded differences and powers.
        scale = (1 + sizes[0]) * (1 + sizes[2]) * sizes[1] * (10 + float(M.magnitude().max() / W.abs().max()))
        assert rank(D, scale) <= bound, name


def test_operators_are_where_the_matrix_is():
    one = torch.ones(3, device="meta")
    flat = Convolution2d(torch.ones(1, 1, 1, 1, device="meta"), 3, 3, "flat")
    for M in (Toeplitz(one), Hankel(one, one), Vandermonde(one), flat, Circulant.random(3, 4, device="meta")):
        A, B, _ = known_displacement(M).operators
        assert A.device.type == B.device.type == "meta"


@pytest.mark.parametrize("name", WITHOUT_OPERATORS)
def test_classes_without_operators_say_so(name: str):
    cls = torchldr.get_structure(name)
    M = cls.random(4, 4, 1 if cls.ranked else None)
    with pytest.raises(TypeError, match="no operators are known"):
        known_displacement(M)


EXACT = {
    "toeplitz": lambda m, n, seed: (Toeplitz(drawing(seed)(m), drawing(seed + 1)(n)), min(2, m, n)),
    "hankel": lambda m, n, seed: (Hankel(drawing(seed)(m), drawing(seed + 1)(n)), min(2, m, n)),
    "vandermonde": lambda m, n, seed: (Vandermonde(nodes(m, seed), n), min(max(1, -(-n // m)), m)),
    "circulant": lambda m, n, seed: (torchldr.Circulant(m, n, column=drawing(seed)(max(m, n))), 1),
    "low_rank": lambda m, n, seed: (
        torchldr.LowRank(m, n, G=drawing(seed)(1, m), H=drawing(seed + 1)(1, n)),
        1,
    ),
    "toeplitz_like": lambda m, n, seed: (_random("toeplitz_like", m, n, seed), 1),
    "hankel_like": lambda m, n, seed: (_random("hankel_like", m, n, seed), 1),
    "ldr_sd": lambda m, n, seed: (_random("ldr_sd", m, n, seed), 1),
    "vandermonde_like": lambda m, n, seed: (
        _random("vandermonde_like", m, n, seed),
        min(max(1, -(-n // m)), m),
    ),
}


def _random(name: str, m: int, n: int, seed: int) -> torchldr.StructuredMatrix:
    generator = torch.Generator().manual_seed(seed)
    return torchldr.get_structure(name).random(m, n, 1, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=20, deadline=None)
@given(m=sizes, n=sizes, seed=seeds)
def test_members_of_ldr_td_are_represented_exactly(name: str, m: int, n: int, seed: int):
    M, r = EXACT[name](m, n, seed)
    N = convert(M, "ldr_td")
    assert isinstance(N, torchldr.LDRTridiagonal)
    assert N.rank == r
    W = M.to_dense()
    assert (N.to_dense() - W).abs().max() <= 1e-14 * max(m, n) * W.abs().max()


@pytest.mark.parametrize("border", BORDERS)
def test_convolutions_are_members_of_ldr_td(border: str):
    M = Convolution2d(drawing(0)(2, 3, 3, 3), 5, 4, border)
    N = convert(M, "ldr_td")
    assert isinstance(N, torchldr.LDRTridiagonal)
    assert (N.rank == 2 + 3) == (border == "flat")
    torch.testing.assert_close(N.to_dense(), M.to_dense(), rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("name", "r"), [("toeplitz", 2), ("circulant", 2), ("low_rank", 2), ("toeplitz_like", 1)]
)
@settings(max_examples=20, deadline=None)
@given(m=sizes, n=sizes, seed=seeds)
def test_toeplitz_like_matrices_are_represented_exactly(name: str, r: int, m: int, n: int, seed: int):
    M, _ = EXACT[name](m, n, seed)
    N = convert(M, "toeplitz_like")
    assert type(N) is torchldr.ToeplitzLike
    assert N.rank == min(m, n, 1 if name == "circulant" and m == n else r)
    W = M.to_dense()
    # For m != n the generators are divided by 1 + a mu^n, of which the smallest is some 1 / max(m, n).
    assert (N.to_dense() - W).abs().max() <= 1e-14 * max(m, n) ** 2 * W.abs().max()


@settings(max_examples=20, deadline=None)
@given(m=sizes, n=sizes, seed=seeds)
def test_any_matrix_is_toeplitz_like_of_some_rank(m: int, n: int, seed: int):
    W = drawing(seed)(m, n)
    N = convert(W, "toeplitz_like")
    assert (N.to_dense() - W).abs().max() <= 1e-14 * max(m, n) ** 2 * W.abs().max()
    H, _ = EXACT["hankel"](m, n, seed)
    assert convert(H, "hankel_like").rank == min(2, m, n)
    for N in (convert(H, "hankel_like"), convert(H.to_dense(), "hankel_like")):
        assert (N.to_dense() - H.to_dense()).abs().max() <= 1e-13 * max(m, n) ** 2
    V = Vandermonde(nodes(m, seed), n)
    torch.testing.assert_close(convert(V, "vandermonde_like").to_dense(), V.to_dense())


def test_block_circulant_and_channels_are_toeplitz_like_of_low_rank():
    """The paper's corollary says r k l + 2 k + 2 l for k x l Toeplitz blocks; k + l lines hold all of it."""
    blocks = BlockCirculant.from_columns(drawing(0)(2, 3, 8))
    assert convert(blocks, "toeplitz_like", tol=1e-12).rank <= known_displacement(blocks).rank == 2 + 3
    channels = Convolution2d(drawing(1)(2, 2, 3, 3), 5, 6, "flat")
    found = convert(channels, "toeplitz_like", tol=1e-12)
    assert found.rank <= channels.displacement_rank_bound == 2 + 2 < 2 * 4 + 2 * 2 + 2 * 2
    torch.testing.assert_close(found.to_dense(), channels.to_dense())


def test_products_and_representations_are_differentiable():
    draw = drawing(0)
    c, r, x = (draw(k).requires_grad_() for k in (4, 5, 5))
    assert torch.autograd.gradcheck(lambda c, r, x: Toeplitz(c, r).matmul(x), (c, r, x))
    assert torch.autograd.gradcheck(lambda c, r: convert(Hankel(c, r), "ldr_td").to_dense(), (c, r))
    assert torch.autograd.gradcheck(lambda c, r: convert(Toeplitz(c, r), "toeplitz_like").to_dense(), (c, r))
    assert torch.autograd.gradcheck(lambda v, x: Vandermonde(v, 5).matmul(x), (c, x))
    t = (draw(5) + 9).requires_grad_()
    assert torch.autograd.gradcheck(lambda s, t, x: Cauchy(s, t).matmul(x), (c, t, x))


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")  # torch, of constants that it folds
def test_a_representation_can_be_linearized():
    """Where torch folds constants, it forgets edits of them in place."""
    c, dc = drawing(0)(5), drawing(1)(5)
    _, tangent = torch.func.linearize(lambda c: convert(Toeplitz(c), "ldr_td").to_dense(), c)
    torch.testing.assert_close(tangent(dc), Toeplitz(dc).to_dense())


@pytest.mark.parametrize("structure", ["toeplitz_like", "hankel_like", "ldr_td"])
def test_representations_are_differentiable_where_singular_values_are_the_same(structure: str):
    column = torch.randn(1, 2, 4, dtype=torch.float64, requires_grad=True)
    M = BlockCirculant.from_columns(column)
    weights = torch.randn(4, 8, dtype=torch.float64)
    found, want = (
        torch.autograd.grad((N.to_dense() * weights).sum(), column)[0] for N in (convert(M, structure), M)
    )
    torch.testing.assert_close(found, want)


@settings(max_examples=15, deadline=None)
@given(m=sizes, n=sizes, seed=seeds)
def test_results_stay_in_the_family(m: int, n: int, seed: int):
    for make in (Toeplitz, Hankel):
        M, N = (make(drawing(seed + k)(m), drawing(seed + k + 1)(n)) for k in (0, 5))
        for got, wanted in (
            (M + N, M.to_dense() + N.to_dense()),
            (M - 3 * N, M.to_dense() - 3 * N.to_dense()),
            (2j * M, 2j * M.to_dense()),
            (M.T, M.to_dense().mT),
            ((2 * M.T).T, 2 * M.to_dense()),
        ):
            assert type(got) is make
            assert torch.equal(got.to_dense(), wanted)
    C = Cauchy(nodes(m, seed), nodes(n, seed) + 3)
    assert type(C.T) is Cauchy
    assert torch.equal(C.T.to_dense(), C.to_dense().mT)


@pytest.mark.parametrize("name", ["toeplitz", "hankel", "cauchy"])
def test_systems_are_solved_by_the_algebra(name: str):
    """A well-conditioned member: what the solvers are good for is tested with them."""
    M = MAKERS[name](24, 24, 3)
    if name != "cauchy":
        M = M + 12 * MAKERS[name](24, 24, 3).with_entries(M.entries * (torch.arange(47) == 23))
    else:
        M = Cauchy(torch.arange(24.0, dtype=torch.float64), torch.arange(24.0, dtype=torch.float64) + 0.4)
    b = drawing(4)(24)
    torch.testing.assert_close(M.to_dense() @ M.solve(b), b)
    torch.testing.assert_close(M.inverse().matmul(b), torch.linalg.solve(M.to_dense(), b))
    assert M.inverse().rank_bound == M.displacement_rank_bound


def test_narrow_dtypes_are_promoted():
    M = Toeplitz(drawing(0)(6).bfloat16())
    x = drawing(1)(6).bfloat16()
    assert M.matmul(x).dtype == torch.bfloat16
    assert M.matmul(x.double()).dtype == torch.float64
    torch.testing.assert_close(M.matmul(x), M.to_dense() @ x, rtol=0.03, atol=0.1)


def test_a_cauchy_matrix_takes_complex_vectors_of_more_digits():
    M = Cauchy(torch.arange(3.0), torch.arange(4.0) + 0.5)
    x = torch.randn(2, 4, dtype=torch.complex128)
    torch.testing.assert_close(M.matmul(x), x @ M.to_dense().to(x.dtype).mT, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Toeplitz(torch.ones(2, 2)), ValueError, "Toeplitz: column must be a vector"),
        (lambda: Toeplitz(torch.ones(2, dtype=torch.int64)), TypeError, "floating point or complex"),
        (lambda: Hankel(torch.ones(2), [1.0]), TypeError, "Hankel: last_row must be a tensor"),
        (lambda: Vandermonde(torch.ones(2), 0), ValueError, "columns must be at least 1"),
        (lambda: Vandermonde(torch.ones(2), 2.5), TypeError, "columns must be an int"),
        (lambda: Cauchy(torch.arange(3.0), torch.arange(2.0, 4.0)), ValueError, r"s\[2\] = t\[0\] = 2"),
        (lambda: Cauchy(torch.ones(2) * 1j, torch.ones(2)), TypeError, "must be real"),
        (lambda: Toeplitz(torch.ones(3)).matmul(torch.ones(4)), ValueError, "in_features=3"),
        (lambda: Toeplitz(torch.ones(3)).matmul([1.0]), TypeError, "expected a tensor"),
        (lambda: convolution1d(torch.ones(3), 4, "half"), ValueError, "mode must be one of"),
        (lambda: Convolution2d(torch.ones(1, 1, 2, 3), 4, 4), ValueError, "odd sides"),
        (lambda: Convolution2d(torch.ones(1, 1, 3, 3), 4, 4, "mirror"), ValueError, "border must be one of"),
        (lambda: Convolution2d(torch.ones(3, 3), 4, 4), ValueError, "cout, cin, kh, kw"),
        (lambda: BlockCirculant.from_columns(torch.ones(3)), ValueError, r"shape \(k, l, b\)"),
        (
            lambda: convert(torchldr.CauchyLike.random(3, 3, 1), "ldr_td"),
            TypeError,
            "no member of 'ldr_td' is known",
        ),
        (lambda: convert(Toeplitz(torch.ones(3) * 1j), "ldr_td"), TypeError, "are real"),
        (lambda: convert("M", "toeplitz_like"), TypeError, "expected a matrix"),
    ],
)
def test_errors_say_what_is_wrong(make, error, message: str):
    with pytest.raises(error, match=message):
        make()
