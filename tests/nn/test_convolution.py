"""conv_to_matrix: the matrix computes the layer's function, and its displacement is what it claims."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

import torchldr
from torchldr import testing
from torchldr.algebra import convert
from torchldr.nn import conv_to_matrix


@st.composite
def layers(draw):
    """A convolution layer in float64 and the size of its inputs."""
    kind, groups = draw(st.sampled_from([nn.Conv1d, nn.Conv2d])), draw(st.sampled_from([1, 1, 2]))
    axes = 1 if kind is nn.Conv1d else 2
    stride = tuple(draw(st.sampled_from([1, 1, 2, 3])) for _ in range(axes))
    size = tuple(draw(st.integers(1, 8)) for _ in range(axes))
    paddings = ["valid", tuple(draw(st.integers(0, 3)) for _ in range(axes))]
    torch.manual_seed(draw(st.integers(0, 999)))
    conv = kind(
        groups * draw(st.integers(1, 2)),
        groups * draw(st.integers(1, 3)),
        tuple(draw(st.integers(1, 4)) for _ in range(axes)),
        stride,
        draw(st.sampled_from(paddings + ["same"] * (set(stride) == {1}))),
        tuple(draw(st.integers(1, 2)) for _ in range(axes)),
        groups,
        draw(st.booleans()),
        draw(st.sampled_from(["zeros", "zeros", "circular"])),
        dtype=torch.float64,
    )
    return conv, size


def matrix_of(conv, size):
    """The matrix, or no example where the layer itself refuses the size."""
    x = torch.zeros(1, conv.in_channels, *size, dtype=torch.float64)
    try:
        conv(x)
    except RuntimeError:
        with pytest.raises(ValueError, match="conv_to_matrix"):
            conv_to_matrix(conv, *size)
        assume(False)
    return conv_to_matrix(conv, *size)


@settings(max_examples=80)
@given(layers())
def test_computes_the_function_of_the_layer(case):
    conv, size = case
    M = matrix_of(conv, size)
    x = torch.randn(3, conv.in_channels, *size, dtype=torch.float64)
    want = conv(x)
    assert M.out_size == want.shape[2:]
    dense = M.to_dense()
    limit = testing.tolerance(torch.float64, max(M.shape)) * (dense.abs().sum(-1).max() * x.abs().max() + 1)
    offset = 0 if M.offset is None else M.offset
    assert (M.matmul(x.flatten(1)) + offset - want.flatten(1)).abs().max() <= limit
    assert (x.flatten(1) @ dense.mT + offset - want.flatten(1)).abs().max() <= limit
    y = torch.randn(3, M.out_features, dtype=torch.float64)
    limit = testing.tolerance(torch.float64, max(M.shape)) * dense.abs().sum(0).max() * y.abs().max()
    assert (M.rmatmul(y) - y @ dense).abs().max() <= limit


@settings(max_examples=60)
@given(layers())
def test_displacement_is_what_the_operators_and_generators_say(case):
    conv, size = case
    M = matrix_of(conv, size)
    dense = M.to_dense()
    A, B, form = M.operators()
    assert form == "stein"
    want = dense - A.to_dense() @ dense @ B.to_dense()
    assert torch.allclose(M.displacement(), want, rtol=0, atol=1e-14)
    G, H = M.displacement_structure().generators()
    assert torch.allclose(G.mT @ H, want, rtol=0, atol=1e-14)
    assert M.displacement_rank() == torch.linalg.matrix_rank(want) <= M.displacement_rank_bound
    generators, _ = M.generators()
    assert generators.shape[0] == M.displacement_rank()


@pytest.mark.parametrize(
    ("conv", "size", "rank"),
    [
        (nn.Conv1d(1, 1, 5, padding=2), (64,), 2),  # Toeplitz
        (nn.Conv1d(1, 1, 5), (64,), 1),  # every output reads inside
        (nn.Conv1d(1, 1, 1), (64,), 1),  # a multiple of the identity
        (nn.Conv1d(1, 1, 5, padding=2, padding_mode="circular"), (64,), 0),  # commutes with the shift
        (nn.Conv1d(1, 1, 7, stride=2, padding=3), (64,), 3),  # two inputs enter with each output
        (nn.Conv1d(2, 3, 5, padding=2), (64,), 5),
        (nn.Conv2d(1, 1, 3, padding=1), (16, 16), 32),
        (nn.Conv2d(1, 1, 3, padding=1), (16, 6), 12),  # of the shorter lines
        (nn.Conv2d(1, 1, 3, padding=1), (6, 16), 12),
        (nn.Conv2d(3, 3, 5, padding=2), (16, 16), 96),  # the paper's, at half its size
        (nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (8, 8), 0),
    ],
    ids=str,
)
def test_displacement_ranks(conv, size, rank):
    """They grow with channels and the length of a line, not with the filters: in general, since there are
    filters of which a border is nearly singular."""
    nn.init.normal_(conv.double().weight, generator=torch.Generator().manual_seed(0))
    M = conv_to_matrix(conv, *size)
    assert M.displacement_rank() == M.displacement_rank_bound == rank


def test_as_a_toeplitz_like_matrix():
    """A filter in one dimension has rank 2 with respect to Z_1 and Z_{-1}; k x l channels of any kind stay
    within the paper's 2 k l + 2 k + 2 l where the rows of an image are not cut."""
    one = convert(conv_to_matrix(nn.Conv1d(1, 1, 3, padding=1, dtype=torch.float64), 32), "toeplitz_like")
    assert isinstance(one, torchldr.ToeplitzLike)
    assert one.rank == 2
    conv = nn.Conv1d(2, 3, 3, padding=1, dtype=torch.float64, bias=False)
    several = convert(conv_to_matrix(conv, 32), "toeplitz_like")
    assert several.rank <= 2 * 6 + 2 * 3 + 2 * 2
    x = torch.randn(4, 2, 32, dtype=torch.float64)
    assert torch.allclose(several.matmul(x.flatten(1)), conv(x).flatten(1), rtol=0, atol=1e-12)


def test_gradients_reach_the_filters_and_the_input():
    conv = nn.Conv2d(2, 3, 3, padding=1, stride=2, dtype=torch.float64)
    M = conv_to_matrix(conv, 5, 4)
    x = torch.randn(2, 40, dtype=torch.float64, requires_grad=True)
    target = torch.randn(2, M.out_features, dtype=torch.float64)
    leaves = [x, conv.weight, conv.bias]
    got = torch.autograd.grad(((M.matmul(x) + M.offset) * target).sum(), leaves)
    layer = conv(x.reshape(2, 2, 5, 4)).flatten(1)
    want = torch.autograd.grad((layer * target).sum(), leaves)
    exact = torch.autograd.grad(((x @ M.to_dense().mT + M.offset) * target).sum(), leaves)
    for a, b, c in zip(got, want, exact, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)
        assert torch.allclose(a, c, rtol=0, atol=1e-12)


def test_is_a_linear_map_with_leading_axes_and_a_transpose():
    M = conv_to_matrix(nn.Conv2d(1, 2, 3, dtype=torch.float64, bias=False), 5)
    assert M.shape == (18, 25)
    assert M.offset is None
    x = torch.randn(2, 3, 25, dtype=torch.float64)
    assert torch.allclose(M.matmul(x), x @ M.to_dense().mT)
    assert torch.allclose(M @ x[0].mT, M.to_dense() @ x[0].mT)
    assert torch.allclose(M.T.to_dense(), M.to_dense().mT)
    assert M.matmul(torch.randn(25)).dtype == torch.float64
    assert repr(M) == "ConvolutionMatrix(1 x (5 x 5) to 2 x (3 x 3), kernel=(3, 3), displacement_rank<=6)"


@pytest.mark.parametrize(
    ("conv", "sizes", "error", "message"),
    [
        (nn.Linear(3, 3), (4,), TypeError, "expected an nn.Conv1d or nn.Conv2d, got Linear"),
        (nn.ConvTranspose2d(1, 1, 3), (4,), TypeError, "got ConvTranspose2d"),
        (nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"), (4,), ValueError, "got 'reflect'"),
        (nn.Conv1d(1, 1, 3), (4, 5), ValueError, "have no width, got width=5"),
        (nn.Conv2d(1, 1, 3), (4, 0), ValueError, "width must be at least 1, got 0"),
        (nn.Conv2d(1, 1, 3), (4.0,), TypeError, "height must be an int, got 4.0"),
        (nn.Conv2d(1, 1, 5), (4,), ValueError, "filters that reach over 5 entries do not fit into 4"),
        (nn.Conv1d(1, 1, 3, padding=5, padding_mode="circular"), (4,), ValueError, "circular padding of 5"),
    ],
    ids=str,
)
def test_errors(conv, sizes, error, message):
    with pytest.raises(error, match=f"conv_to_matrix: .*{message}"):
        conv_to_matrix(conv, *sizes)
