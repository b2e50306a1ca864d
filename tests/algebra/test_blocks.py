"""Block matrices and their displacement."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torchldr
from torchldr.algebra import block
from torchldr.operators import Diagonal
from torchldr.testing import member

CLASSES = list(torchldr.structures().values())
EPS = torch.finfo(torch.float64).eps


def random(name, *args, seed=0, **options):
    g = torch.Generator().manual_seed(seed)
    return torchldr.get_structure(name).random(*args, dtype=torch.float64, generator=g, **options)


def dense_of(grid):
    return torch.cat([torch.cat([M.to_dense() for M in row], 1) for row in grid])


@given(
    heights=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    widths=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    cls=st.sampled_from(CLASSES),
    other=st.sampled_from(CLASSES),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=30)
def test_blocks(heights, widths, cls, other, seed):
    """Products, transposes and generators of a grid of two classes in turn."""
    grid = [
        [
            member(kind, m, n, 1 if kind.ranked else None, seed=seed + 7 * i + j)
            for j, n in enumerate(widths)
            for kind in [(cls, other)[(i + j) % 2]]
        ]
        for i, m in enumerate(heights)
    ]
    M, W = block(grid), dense_of(grid)
    size = max(float(N.magnitude().max()) for row in grid for N in row)
    bound = 100 * EPS * max(W.shape) * size * len(heights) * len(widths)
    x, y = torch.ones(2, W.shape[1], dtype=torch.float64), torch.ones(2, W.shape[0], dtype=torch.float64)
    assert torch.equal(M.to_dense(), W)
    assert (M.matmul(x) - x @ W.mT).abs().max() <= bound * max(W.shape)
    assert (M.rmatmul(y) - y @ W).abs().max() <= bound * max(W.shape)
    assert (M.T @ y.mT - W.mT @ y.mT).abs().max() <= bound * max(W.shape)
    known = M.displacement_structure()
    if known is not None:
        G, H = known.generators()
        assert G.shape[0] == H.shape[0] == M.rank_bound
        assert (G.mT @ H - known.of_dense(W)).abs().max() <= 10 * bound


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 2), (2, 3), (3, 1)])
@pytest.mark.parametrize("r", [1, 2])
def test_toeplitz_like_blocks(rows, columns, r):
    """r k l by block-diagonal shifts, and Toeplitz-like of rank at most r k l + 2k + 2l."""
    n = 48
    grid = [[random("toeplitz_like", n, n, r, seed=10 * i + j) for j in range(columns)] for i in range(rows)]
    M, W = block(grid), dense_of(grid)
    assert M.rank_bound == M.displacement_rank() == r * rows * columns
    whole = M.recompress(structure="toeplitz_like")
    assert type(whole) is torchldr.ToeplitzLike
    assert whole.rank <= r * rows * columns + 2 * rows + 2 * columns
    assert (whole.to_dense() - W).abs().max() <= 1e-12 * W.abs().max()
    # Products of block matrices are closed too: the inner operators are block-diagonal shifts.
    if rows == columns:
        assert (M @ M).rank_bound == 2 * r * rows * columns + rows


def test_blocks_of_learned_operators():
    M = random("ldr_sd", 32, 32, 2)
    others = [M.unchecked(32, 32, {**M.tensors, "G": M.G + i}, M.options) for i in range(1, 4)]
    assert block([[M, others[0]], [others[1], others[2]]]).rank_bound == 2 * 4
    assert block([[M, random("ldr_sd", 32, 32, 1, seed=1)]]).rank_bound is None


def test_a_low_rank_block_takes_the_operators_beside_it():
    T, L = random("toeplitz_like", 32, 32, 1), random("low_rank", 32, 32, 1)
    assert block([[L, T], [T, L]]).rank_bound == 2 * 1 + 2 * 2
    assert block([[L, T]]).displacement_structure().A.blocks[0].f == 1.0


def test_blocks_may_be_tensors_operators_and_complex():
    T = random("toeplitz_like", 4, 4, 1)
    W, d = torch.ones(4, 2, dtype=torch.float64), torch.arange(4).double() * (1 + 1j)
    M = block([[T, W], [Diagonal(d), W]])
    assert M.dtype == torch.complex128
    x = torch.ones(6, dtype=torch.float64)
    want = torch.cat((T @ x[:4] + 2, d + 2))
    torch.testing.assert_close(M @ x, want)
    torch.testing.assert_close(M.to_dense() @ x.to(d.dtype), want)


@pytest.mark.parametrize(
    ("grid", "error", "words"),
    [
        ([], ValueError, "at least one block"),
        ([[torch.ones(2, 2)], [torch.ones(2, 2)] * 2], ValueError, "row 1 has 2 blocks, row 0 has 1"),
        ([[torch.ones(2, 2), torch.ones(3, 2)]], ValueError, r"block \(0, 1\) must be 2 x 2 .* got 3 x 2"),
        ([[torch.ones(2)]], ValueError, "two axes"),
        ([["x"]], TypeError, "linear map or a tensor, got str"),
        ([[torch.ones(2, 2), torch.ones(2, 2).double()]], TypeError, "dtypes torch.float32, torch.float64"),
    ],
)
def test_errors(grid, error, words):
    with pytest.raises(error, match=words):
        block(grid)
