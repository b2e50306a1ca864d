"""Operators against their dense matrices."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torchldr
from torchldr.operators import (
    BlockDiagonal,
    DenseOperator,
    Diagonal,
    Operator,
    Power,
    Shift,
    Subdiagonal,
    Tridiagonal,
    difference,
    low_rank_sum,
    same,
)

KINDS = ("shift", "diagonal", "complex diagonal", "subdiagonal", "tridiagonal", "dense", "blocks", "power")
sizes, seeds = st.integers(1, 12), st.integers(0, 2**31)


def draw(kind: str, n: int, seed: int, dtype: torch.dtype = torch.float64) -> Operator:
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=g).to(dtype)

    if kind == "shift":
        return Shift(n, (0.0, 1.0, -1.0, 0.3)[seed % 4], dtype=dtype)
    if kind == "diagonal":
        return Diagonal(normal(n))
    if kind == "complex diagonal":
        return Diagonal(torch.complex(normal(n), normal(n)))
    if kind == "subdiagonal":
        return Subdiagonal(normal(n - 1), normal())
    if kind == "tridiagonal":
        return Tridiagonal(normal(n - 1), normal(n), normal(n - 1), normal(2))
    if kind == "dense":
        return DenseOperator(normal(n, n))
    if kind == "power":
        return Power(draw(KINDS[seed % 6], n, seed + 1, dtype), seed % 5)
    parts = [draw(KINDS[(seed + i) % 6], size, seed + i, dtype) for i, size in enumerate((n, 1, 2))]
    return BlockDiagonal(parts)


def definition(A: Operator) -> torch.Tensor:
    """The dense matrix entry by entry, without any method of the operator."""
    if isinstance(A, torchldr.operators.TransposedOperator):
        return definition(A.of).mT
    W = torch.zeros(A.n, A.n, dtype=A.dtype)
    if isinstance(A, Shift | Subdiagonal):
        weights = A.s if isinstance(A, Subdiagonal) else torch.ones(A.n - 1, dtype=A.dtype)
        W[range(1, A.n), range(A.n - 1)] = weights
        W[0, -1] += A.corner
    elif isinstance(A, Diagonal):
        W[range(A.n), range(A.n)] = A.d
    elif isinstance(A, Tridiagonal):
        W[range(1, A.n), range(A.n - 1)] += A.sub
        W[range(A.n - 1), range(1, A.n)] += A.super
        W[range(A.n), range(A.n)] += A.diag
        W[0, -1] += A.corners[0]
        W[-1, 0] += A.corners[1]
    elif isinstance(A, BlockDiagonal):
        return torch.block_diag(*(definition(block) for block in A.blocks)).to(A.dtype)
    elif isinstance(A, Power):
        return torch.linalg.matrix_power(definition(A.of), A.p)
    elif isinstance(A, DenseOperator):
        return A.A
    return W


def magnitude(A: Operator) -> torch.Tensor:
    """|A| before anything cancels: in a power, or where a corner meets another entry."""
    if isinstance(A, Power):
        return torch.linalg.matrix_power(magnitude(A.of), A.p)
    if isinstance(A, BlockDiagonal):
        return torch.block_diag(*(magnitude(block) for block in A.blocks))
    rows, columns, values = A.entries()
    zero = torch.zeros(A.n, A.n, dtype=torch.float64)
    return zero.index_put((rows, columns), values.abs().double(), accumulate=True)


def close(got: torch.Tensor, want: torch.Tensor, size: float, n: int) -> None:
    eps = torch.finfo(torch.empty((), dtype=got.dtype).real.dtype).eps
    assert got.shape == want.shape
    assert (got - want).abs().max() <= 20 * n * eps * max(size, 1e-300)


@pytest.mark.parametrize("kind", KINDS)
@given(n=sizes, seed=seeds)
@settings(max_examples=15)
def test_products(kind, n, seed):
    A = draw(kind, n, seed)
    W = definition(A)
    torch.testing.assert_close(A.to_dense(), W)
    rows, columns, values = A.entries()
    torch.testing.assert_close(
        torch.zeros(A.n, A.n, dtype=W.dtype).index_put((rows, columns), values, accumulate=True), W
    )
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(A.n, dtype=torch.float64, generator=g)
    X = torch.randn(2, A.n, 3, dtype=torch.float64, generator=g)
    above = magnitude(A)
    size = float(above.sum(-1).max() * max(x.abs().max(), X.abs().max()))
    wide = torch.promote_types(W.dtype, x.dtype)
    close(A @ x, W @ x.to(wide), size, A.n)
    close(A @ X, W @ X.to(wide), size, A.n)
    close(A.matmul(X.mT), X.mT.to(wide) @ W.mT, size, A.n)
    size = float(above.sum(-2).max() * max(x.abs().max(), X.abs().max()))
    close(A.T @ x, W.mT @ x.to(wide), size, A.n)
    close(A.T.T @ X, W @ X.to(wide), float(above.sum() * X.abs().max()), A.n)
    torch.testing.assert_close(A.T.to_dense(), W.mT)


@pytest.mark.parametrize("kind", KINDS)
@given(n=sizes, seed=seeds, p=st.integers(0, 30), k=st.integers(1, 30))
@settings(max_examples=12)
def test_powers_and_krylov(kind, n, seed, p, k):
    A = draw(kind, n, seed)
    W, g = definition(A), torch.Generator().manual_seed(seed)
    power = torch.linalg.matrix_power
    v = torch.randn(A.n, dtype=torch.float64, generator=g)
    above = power(magnitude(A), p)
    close((A**p).to_dense(), power(W, p), float(above.max()), A.n * (p + 1))
    close(A**p @ v, power(W, p) @ v.to(W.dtype), float((above @ v.abs()).max()), A.n * (p + 1))
    close((A**p).T @ v, power(W, p).mT @ v.to(W.dtype), float((above.mT @ v.abs()).max()), A.n * (p + 1))
    K = A.krylov(v, k)
    assert K.shape == (A.n, k)
    want = torch.stack([power(W, j) @ v.to(W.dtype) for j in range(k)], -1)
    bound = max(float((power(magnitude(A), j) @ v.abs()).max()) for j in range(k))
    close(K, want, bound, A.n * k)


@pytest.mark.parametrize("kind", ["shift", "diagonal", "complex diagonal", "subdiagonal", "blocks"])
@given(n=sizes, seed=seeds)
@settings(max_examples=12)
def test_eigenvalues_and_inverse(kind, n, seed):
    A = draw("shift" if kind == "blocks" else kind, n, seed)
    if kind == "blocks":
        A = BlockDiagonal([A, draw("diagonal", 2, seed), draw("subdiagonal", 3, seed + 1).T])
    values = A.eigenvalues()
    assert values.shape == (A.n,)
    # The characteristic polynomial at points away from the spectrum: eigenvalues of a shift are too
    # sensitive to be compared one by one.
    W = A.to_dense().to(torch.complex128)
    radius = 1 + float(values.abs().max())
    for j in range(5):
        z = torch.polar(torch.tensor(1.5 * radius).double(), torch.tensor(2.0 * math.pi * j / 5).double())
        want = torch.linalg.det(z * torch.eye(A.n, dtype=W.dtype) - W)
        got = (z - values).prod()
        assert (got - want).abs() <= 1e-12 * A.n * (2.5 * radius) ** A.n
    try:
        B = A.inverse()
    except ValueError:
        assert torch.linalg.matrix_rank(W) < A.n
        return
    torch.testing.assert_close(B.to_dense() @ A.to_dense(), torch.eye(A.n, dtype=B.dtype), atol=1e-9, rtol=0)
    torch.testing.assert_close((A**-2).to_dense(), B.to_dense() @ B.to_dense())


def test_eigenvalues_of_long_weights_do_not_underflow():
    A = Subdiagonal(torch.full((999,), 0.1, dtype=torch.float64), 0.1)
    torch.testing.assert_close(A.eigenvalues().abs(), torch.full((1000,), 0.1, dtype=torch.float64))


@given(n=st.integers(3, 8), seed=seeds)
@settings(max_examples=10)
def test_triangular_operators_know_their_eigenvalues(n, seed):
    A = draw("tridiagonal", n, seed)
    with pytest.raises(NotImplementedError, match="closed form"):
        A.eigenvalues()
    lower = Tridiagonal(A.sub, A.diag, 0 * A.super)
    torch.testing.assert_close(lower.eigenvalues(), A.diag)
    torch.testing.assert_close(lower.T.eigenvalues(), A.diag)


@pytest.mark.parametrize("kind", ["shift", "diagonal", "subdiagonal", "tridiagonal", "dense"])
@given(n=st.integers(1, 6), seed=seeds)
@settings(max_examples=3)
def test_gradients(kind, n, seed):
    A = draw(kind, n, seed)
    tensors = [t.requires_grad_() for t in vars(A).values() if isinstance(t, torch.Tensor)]
    if kind == "shift":
        f = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
        A, tensors = Shift(n, f), [f]
    v = torch.randn(n, dtype=torch.float64, requires_grad=True)

    def run(v, *_):
        return A @ v, A.T @ v, A.krylov(v, 4), A.to_dense(), A**3 @ v

    assert torch.autograd.gradcheck(run, (v, *tensors))


@settings(max_examples=50)
@given(n=sizes, first=seeds, second=seeds, kinds=st.tuples(*[st.sampled_from(KINDS[:-1])] * 2))
def test_same_and_difference(n, first, second, kinds):
    A, B = draw(kinds[0], n, first), draw(kinds[1], n, second)
    assert same(A, A)
    assert same(A, DenseOperator(A.to_dense()))
    assert same(A.T.T, A)
    if A.n != B.n:
        assert not same(A, B)
        return
    D = A.to_dense() - B.to_dense()
    assert same(A, B) == torch.equal(D, torch.zeros_like(D))
    U, V = low_rank_sum(difference(A, B), A.n).factors()
    torch.testing.assert_close(U.mT @ V, D)
    assert U.shape[0] == min(int(D.any(0).sum()), int(D.any(1).sum()))


def test_shifts_differ_by_one_entry():
    U, V = low_rank_sum(difference(Shift(6, 1.0), Shift(6, -1.0)), 6).factors()
    assert U.shape == V.shape == (1, 6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_keep_the_dtype_of_their_input(dtype):
    x = torch.ones(4, dtype=dtype)
    for A in (Shift(4, 0.3), Shift(4, 1.0) ** 7, Shift(4, 0.3, dtype=torch.float64)):
        assert (A @ x).dtype == (A.T @ x).dtype == A.krylov(x, 6).dtype == dtype
    assert (Shift(4, 1j) @ x).is_complex()
    third = Shift(4, 1 / 3).krylov(x.double(), 5)[0, 4]
    assert abs(float(third) - 1 / 3) < 1e-15


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Shift(0), ValueError, "n must be at least 1, got 0"),
        (lambda: Shift(2.0), TypeError, "n must be an int, got 2.0"),
        (lambda: Shift(3, torch.ones(2)), ValueError, "shape"),
        (lambda: Shift(3) @ torch.ones(4), ValueError, r"n=3 entries, got shape \(4,\)"),
        (lambda: Shift(3) ** -1, ValueError, "nilpotent"),
        (lambda: Diagonal(torch.tensor([1.0, 0.0])).inverse(), ValueError, "entry 1 is 0"),
        (lambda: DenseOperator(torch.ones(2, 2)).inverse(), ValueError, "2 x 2 is singular"),
        (lambda: Diagonal(torch.ones(2, 2)), ValueError, "d must be a vector"),
        (lambda: Diagonal(torch.ones(2, dtype=torch.int64)), TypeError, "floating point or complex"),
        (lambda: Tridiagonal(torch.ones(2), torch.ones(2), torch.ones(1)), ValueError, "sub must have shape"),
        (lambda: DenseOperator(torch.ones(2, 3)), ValueError, "square"),
        (lambda: BlockDiagonal([]), ValueError, "at least one"),
        (lambda: BlockDiagonal([torch.ones(2, 2)]), TypeError, "Operator"),
        (lambda: Power(Shift(2), -1), ValueError, "at least 0"),
        (lambda: Shift(3).krylov(torch.ones(3), 0), ValueError, "k of at least 1"),
        (
            lambda: Tridiagonal(torch.ones(1), torch.ones(2), torch.ones(1)).inverse(),
            NotImplementedError,
            "sparse",
        ),
    ],
)
def test_errors(make, error, words):
    with pytest.raises(error, match=words):
        make()
