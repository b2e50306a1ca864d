"""StructuredChannels, MatrixStack and the dense weights of stacks, held to the definition of each class."""

import copy
import pickle
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import linear

import torchldr
from torchldr import StructuredChannels, testing
from torchldr.functional.doubling import shifted_sum
from torchldr.nn.channels.stack import MatrixStack

CLASSES = list(torchldr.structures().values())
every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)


def block_matrix(layer):
    """The dense block matrix from the definition of its matrices, and what its rounding is measured by."""
    if layer.form == "wide":
        return layer.matrix().to_dense(), layer.matrix().magnitude()
    grid = [[layer.matrix(o, i) for i in range(layer.in_channels)] for o in range(layer.out_channels)]
    W = torch.cat([torch.cat([M.to_dense() for M in row], -1) for row in grid])
    return W, torch.cat([torch.cat([M.magnitude() for M in row], -1) for row in grid])


def moved(layer):
    with torch.no_grad():
        for o in range(layer.out_channels):
            for i in range(layer.in_channels):
                layer.grid.structure.draw_operators_(layer.matrix(o, i).tensors)
    return layer


@settings(max_examples=25)
@given(data=st.data())
def test_dense_by_doubling_is_the_definition_for_every_operator(data):
    """All regimes of the operators, the exact zeros among them, and every k: row by row within
    50 eps (1 + log2 n) of what the factors allow."""
    draw = data.draw
    m, n, rank = draw(st.integers(1, 40)), draw(st.integers(1, 40)), 1
    if min(m, n) > 1:
        rank = draw(st.integers(1, 2))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    M = testing.member(
        torchldr.LDRSubdiagonal,
        m,
        n,
        rank,
        regime=draw(st.sampled_from(list(testing.REGIMES))),
        dtype=dtype,
        seed=draw(st.integers(0, 99)),
    )
    lower = [torch.cat((M.tensors[f"corner_{s}"].reshape(1), M.tensors[f"subdiagonal_{s}"])) for s in "AC"]
    W = shifted_sum(M.G.mT @ M.H, *lower, min(m, n))
    limit = testing.tolerance(dtype, max(m, n)) * M.double().magnitude()
    assert ((W.double() - M.double().to_dense()).abs() <= limit).all()
    k = draw(st.integers(1, 50))  # more terms than rows: the ring goes around
    A, C = (torch.linalg.matrix_power for _ in range(2))
    dense = M.double().operators()
    start = M.double().G.mT @ M.double().H
    want = sum(A(dense[0], j) @ start @ C(dense[1], j).mT for j in range(k))
    size = sum(A(dense[0].abs(), j) @ start.abs() @ C(dense[1].abs(), j).mT for j in range(k))
    got = shifted_sum(M.double().G.mT @ M.double().H, *(t.double() for t in lower), k)
    assert ((got - want).abs() <= testing.tolerance(torch.float64, 50) * size).all()


@every_class
def test_stacks_are_their_matrices(cls):
    for m, n in ((1, 1), (5, 8), (8, 5), (16, 16)):
        rank = min(2, m, n) if cls.ranked else None
        stack = MatrixStack((2, 3), n, m, structure=cls, rank=rank, dtype=torch.float64)
        stack.reset_parameters()
        with torch.no_grad():
            cls.draw_operators_(stack.matrix().tensors)
        x = torch.randn(4, 3, n, dtype=torch.float64)
        W, y = stack.dense(), stack.matrix().matmul(x.transpose(0, 1))
        assert W.shape == (2, 3, m, n)
        assert y.shape == (2, 3, 4, m)
        for o in range(2):
            for i in range(3):
                M = stack.matrix()[o, i]
                limit = testing.tolerance(torch.float64, max(m, n)) * M.magnitude()
                assert ((W[o, i] - M.to_dense()).abs() <= limit).all()
                far = x[:, i].abs() @ limit.mT
                assert ((y[o, i] - x[:, i] @ M.to_dense().mT).abs() <= far.max()).all()


@settings(max_examples=25)
@given(data=st.data())
def test_values_and_gradients_are_those_of_the_block_matrix(data):
    draw = data.draw
    cls = draw(st.sampled_from(CLASSES))
    torch.manual_seed(draw(st.integers(0, 999)))
    inputs, outputs = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    features = draw(st.sampled_from([1, 4, 7, (2, 3), (3, 3)]))
    out = draw(st.sampled_from([None, 3, (2, 2)]))
    form = draw(st.sampled_from(["grid", "wide"]))
    bias = draw(st.booleans())
    layer = StructuredChannels(
        inputs, outputs, features, out, bias, structure=cls, form=form, dtype=torch.float64
    )
    layer = moved(layer) if form == "grid" else layer
    layer.product = draw(st.sampled_from(["auto", "fast", "dense"]))
    layer.train(draw(st.booleans()))
    lead = draw(st.sampled_from([(), (2,), (2, 3), (0,)]))
    x = torch.randn(*lead, inputs, *layer.features, dtype=torch.float64, requires_grad=True)
    leaves, (W, size) = [x, *layer.parameters()], block_matrix(layer)

    def oracle(x):
        y = x.flatten(-1 - len(layer.features)) @ W.mT
        y = y.reshape(*lead, outputs, *layer.out_features)
        return y + layer.bias.reshape(-1, *[1] * len(layer.out_features)) if bias else y

    y, want = layer(x), oracle(x)
    assert y.shape == want.shape == (*lead, outputs, *layer.out_features)
    n = max(W.shape)
    top = float(x.detach().abs().amax()) if x.numel() else 0.0
    limit = testing.tolerance(torch.float64, n) * (1 + float(size.detach().sum(-1).max()) * top)
    assert (y - want).abs().max() <= limit if y.numel() else True
    target = torch.randn(y.shape, dtype=torch.float64)
    # At 1 x 1 nothing moves, and an operator need not be in the graph.
    options = {"allow_unused": True, "materialize_grads": True}
    got, exact = (torch.autograd.grad((t * target).sum(), leaves, **options) for t in (y, want))
    largest = max([1.0, *(float(g.abs().max()) for g in exact if g.numel())])
    for a, b in zip(got, exact, strict=True):
        assert a.shape == b.shape
        assert not a.numel() or (a - b).abs().max() <= testing.tolerance(torch.float64, n) * n * largest
    with torch.no_grad():
        for _ in range(2):  # the second inference uses what the first kept
            assert not y.numel() or (layer(x) - want).abs().max() <= limit


@every_class
def test_outputs_start_with_the_variance_of_nn_linear(cls):
    for form in ("grid", "wide"):
        layer = StructuredChannels(3, 2, 16, 8, structure=cls, form=form)
        assert layer.weight.square().mean().item() == pytest.approx(1 / (3 * 3 * 16), rel=1e-3)
        assert layer.bias.abs().max() <= (3 * 16) ** -0.5


def test_a_grid_of_dense_matrices_is_a_linear_layer():
    layer = StructuredChannels(2, 3, (4, 4), (2, 2), structure="dense")
    x = torch.randn(5, 2, 4, 4)
    y = nn.functional.linear(x.flatten(1), layer.weight, layer.bias.repeat_interleave(4))
    assert torch.allclose(layer(x), y.reshape(5, 3, 2, 2), atol=1e-6)


def test_parameter_counts_are_the_papers():
    """The first layers of the paper's table on convolutions: 3 x 3 channels, and one wide matrix."""
    counts = {
        ("toeplitz_like", "grid", 16): 9 * 16 * 2 * 1024,
        ("ldr_sd", "grid", 16): 9 * 17 * 2 * 1024,
        ("toeplitz_like", "wide", 48): 48 * 2 * 3072,
        ("ldr_sd", "wide", 48): 49 * 2 * 3072,
    }
    for (structure, form, rank), count in counts.items():
        options = {"structure": structure, "form": form, "rank": rank, "device": "meta"}
        layer = StructuredChannels(3, 3, (32, 32), bias=False, **options)
        assert sum(p.numel() for p in layer.parameters()) == count


def test_state_dict_keys_never_change():
    grid = StructuredChannels(2, 3, 4, structure="low_rank", rank=2)
    assert {name: tuple(t.shape) for name, t in grid.state_dict().items()} == {
        "grid.G": (3, 2, 2, 4),
        "grid.H": (3, 2, 2, 4),
        "bias": (3,),
    }
    wide = StructuredChannels(2, 3, 4, structure="low_rank", form="wide", bias=False)
    assert {name: tuple(t.shape) for name, t in wide.state_dict().items()} == {
        "wide.G": (1, 12),
        "wide.H": (1, 8),
    }
    assert "grid.permutation" in StructuredChannels(2, 3, 4, structure="fastfood").state_dict()


@every_class
@pytest.mark.parametrize("form", ["grid", "wide"])
def test_copies_and_the_meta_device(cls, form):
    layer = StructuredChannels(2, 2, 5, structure=cls, form=form)
    x = torch.randn(3, 2, 5)
    y = layer(x)
    assert torch.equal(copy.deepcopy(layer)(x), y)
    assert torch.equal(pickle.loads(pickle.dumps(layer.eval())).train()(x), y)
    ghost = StructuredChannels(2, 2, 5, structure=cls, form=form, device="meta").to_empty(device="cpu")
    ghost.reset_parameters()
    ghost.load_state_dict(layer.state_dict())
    assert torch.equal(ghost(x), y)


@pytest.mark.parametrize("name", ["circulant", "block_circulant", "toeplitz_like"])
def test_torch_exports_grids(name):
    """Circulant matrices were made under vmap, in which torch does not trace their gradient."""
    layer = StructuredChannels(2, 3, 5, structure=name).double()
    x = torch.randn(4, 2, 5, dtype=torch.float64)
    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), layer(x))


def test_products():
    layer = StructuredChannels(2, 2, 256, structure="toeplitz_like", rank=2)
    wide = StructuredChannels(2, 2, 256, structure="toeplitz_like", form="wide")
    for made in (layer, wide):
        for product in ("fast", "dense"):
            made.product = product
            assert {part.product for part in made.children()} == {product}
    with pytest.raises(
        ValueError, match="StructuredChannels: product must be one of auto, fast, dense, got 'slow'"
    ):
        layer.product = "slow"


def test_the_block_matrix_is_not_copied():
    """It lies in memory as the product reads it."""
    for structure in ("circulant", "ldr_sd"):
        layer = StructuredChannels(2, 3, 6, structure=structure)
        layer.product = "dense"
        with patch("torchldr.nn.channels.layer.linear", wraps=linear) as used:
            layer(torch.randn(4, 2, 6))
        W = used.call_args.args[1]
        assert W.is_contiguous()
        blocks = [[layer.matrix(o, i).to_dense() for i in range(2)] for o in range(3)]
        torch.testing.assert_close(W, torch.cat([torch.cat(row, 1) for row in blocks]))


@pytest.mark.parametrize("form", ["grid", "wide"])
@pytest.mark.parametrize("product", ["fast", "dense"])
def test_low_precision(form, product):
    layer = StructuredChannels(2, 2, 24, structure="ldr_sd", rank=2, form=form, dtype=torch.bfloat16)
    layer.product = product
    x = torch.randn(16, 2, 24, dtype=torch.bfloat16)
    W = block_matrix(copy.deepcopy(layer).double())[0]
    exact = (x.double().flatten(1) @ W.mT).reshape(16, 2, 24) + layer.bias.double().unsqueeze(-1)
    dense = nn.functional.linear(x.flatten(1), W.to(torch.bfloat16)).reshape(16, 2, 24)
    dense = dense + layer.bias.unsqueeze(-1)
    assert layer(x).dtype == torch.bfloat16
    assert (layer(x) - exact).abs().max() <= 2 * (dense - exact).abs().max()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer.float()(x.float()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"in_channels": 0}, ValueError, "StructuredChannels: in_channels must be at least 1, got 0"),
        ({"out_channels": 1.5}, TypeError, "out_channels must be an int, got 1.5"),
        ({"features": (2, 0)}, ValueError, r"features must be at least 1, got \(2, 0\)"),
        ({"features": "4"}, TypeError, "features must be an int or a tuple of ints, got '4'"),
        ({"out_features": ()}, TypeError, r"out_features must be an int or a tuple of ints, got \(\)"),
        ({"form": "block"}, ValueError, "form must be one of grid, wide, got 'block'"),
        ({"init": "conv"}, ValueError, "init must be one of linear, paper, got 'conv'"),
        ({"bias": None}, TypeError, "bias must be True or False, got None"),
        ({"rank": 9}, ValueError, "StructuredChannels: rank must be between 1 and 8"),
        ({"rnk": 2}, TypeError, "StructuredChannels: unknown keyword 'rnk'. Did you mean 'rank'"),
        ({"fom": "wide"}, TypeError, "Did you mean 'form'"),
        (
            {"form": "wide", "innit": "paper"},
            TypeError,
            "StructuredChannels: unknown keyword 'innit'. Did you",
        ),
        ({"dtype": torch.int32}, TypeError, "dtype must be real floating point"),
    ],
)
def test_errors_at_construction(kwargs, error, message):
    with pytest.raises(error, match=message):
        StructuredChannels(**{"in_channels": 2, "out_channels": 2, "features": 8, **kwargs})


def test_errors_for_inputs():
    layer = StructuredChannels(2, 3, (4, 4))
    for x, error, message in (
        (torch.randn(5, 2, 16), ValueError, r"the last axes must be \(2, 4, 4\), got shape \(5, 2, 16\)"),
        (torch.randn(4, 4), ValueError, r"got shape \(4, 4\)"),
        ([1], TypeError, "expected a tensor, got list"),
        (torch.ones(2, 4, 4).long(), TypeError, "must be real floating point, got torch.int64"),
        (torch.randn(2, 4, 4).double(), TypeError, "dtype torch.float64, the weights torch.float32"),
        (torch.empty(2, 4, 4, device="meta"), ValueError, "the input is on meta, the weights on cpu"),
    ):
        with pytest.raises(error, match=message):
            layer(x)
    with pytest.raises(TypeError, match=r"the form 'grid' has matrix\(out_channel, in_channel\), got \(\)"):
        layer.matrix()
    with pytest.raises(TypeError, match=r"the form 'wide' has matrix\(\), got \(0, 1\)"):
        StructuredChannels(2, 3, 4, form="wide").matrix(0, 1)


def test_repr():
    text = repr(StructuredChannels(3, 2, (4, 4), 8, bias=False, structure="low_rank", rank=2))
    assert (
        "3, 2, features=(4, 4), out_features=8, bias=False, structure='low_rank', rank=2, form='grid'" in text
    )
    assert "(grid): MatrixStack(2 x 3 of in_features=16, out_features=8" in text
    assert "(wide): StructuredLinear(in_features=8" in repr(StructuredChannels(2, 2, 4, form="wide"))
