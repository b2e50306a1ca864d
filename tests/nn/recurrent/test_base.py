"""StructuredLSTM and StructuredGRU as modules: names, copies, starting values, products, export, errors."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import torchldr
from torchldr import StructuredGRU, StructuredLSTM
from torchldr.nn.recurrent.inputs import Given

every_layer = pytest.mark.parametrize("layer_class", [StructuredLSTM, StructuredGRU])
every_class = pytest.mark.parametrize("cls", list(torchldr.structures().values()), ids=lambda cls: cls.name)


@every_layer
def test_layers_may_share_their_matrices(layer_class):
    layer, x = layer_class(6, 6, 2, structure="low_rank", which="both"), torch.randn(4, 3, 6)
    layer.weight_ih_l1, layer.weight_hh_l1 = layer.weight_ih_l0, layer.weight_hh_l0
    assert layer.matrices(1).keys() == layer.matrices(0).keys()
    torch.testing.assert_close(layer.to_torch()(x), layer(x))


def test_state_dict_keys_never_change():
    layer = StructuredLSTM(4, 6, 2, bidirectional=True, proj_size=3, structure="low_rank")
    expected = set()
    for suffix in ("l0", "l0_reverse", "l1", "l1_reverse"):
        expected |= {f"weight_ih_{suffix}.{name}" for name in "GH"}
        expected |= {f"{name}_{suffix}" for name in ("weight_hh", "weight_hr", "bias_ih", "bias_hh")}
    assert set(layer.state_dict()) == expected
    both = StructuredGRU(4, 6, bias=False, structure="fastfood", which="both")
    names = ("S", "D", "B", "permutation")
    assert set(both.state_dict()) == {f"weight_{side}h_l0.{name}" for side in "ih" for name in names}
    hidden = StructuredGRU(4, 6, bias=False, which="hidden", structure="dense")
    assert set(hidden.state_dict()) == {"weight_ih_l0", "weight_hh_l0.weight"}


def test_gates_come_first_and_have_a_matrix_each():
    layer = StructuredLSTM(8, 6, structure="ldr_sd", rank=2)
    assert layer.weight_ih_l0.G.shape == (4, 2, 6)
    assert layer.weight_ih_l0.corner_A.shape == (4, 1)
    assert list(layer.matrices()) == ["W_ii", "W_if", "W_ig", "W_io"]
    assert list(StructuredGRU(8, 6, which="both").matrices()) == [f"W_{s}{g}" for s in "ih" for g in "rzn"]
    rows = layer.dense_weight("weight_ih_l0").chunk(4)
    for matrix, W in zip(layer.matrices().values(), rows, strict=True):
        assert torch.allclose(matrix.to_dense(), W, atol=1e-6)


def test_parameter_counts_are_the_papers():
    """2048 to 25600 parameters in the four matrices: LDR-SD ranks 1 to 24, the others one more."""
    for rank, count in ((1, 2048), (2, 3072), (4, 5120), (8, 9216), (16, 17408), (24, 25600)):
        for structure, r in (("ldr_sd", rank), ("toeplitz_like", rank + 1), ("low_rank", rank + 1)):
            layer = StructuredLSTM(128, 128, structure=structure, rank=r)
            assert sum(p.numel() for p in layer.weight_ih_l0.parameters()) == count


@every_class
@every_layer
def test_copies_pickles_and_state_dicts_are_bit_for_bit(layer_class, cls):
    layer = layer_class(5, 6, 2, structure=cls, which="both")
    x = torch.randn(3, 2, 5)
    y = layer(x)[0]
    assert torch.equal(copy.deepcopy(layer)(x)[0], y)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x)[0], y)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = layer_class(5, 6, 2, structure=cls, which="both")
    assert not torch.equal(other(x)[0], y)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x)[0], y)


@every_class
@every_layer
def test_starting_variance_is_that_of_torch(layer_class, cls):
    """The mean square of every matrix is 1 / (3 hidden_size), whatever the input size and the class."""
    for n, h in ((24, 12), (12, 24)):
        layer = layer_class(n, h, structure=cls, rank=2 if cls.ranked else None, which="both")
        for matrix in layer.matrices().values():
            assert matrix.to_dense().square().mean().item() == pytest.approx(1 / (3 * h), rel=1e-3)
        assert layer.bias_ih_l0.abs().max() <= h**-0.5
        assert layer.bias_ih_l0.abs().max() > 0.5 * h**-0.5


@every_layer
def test_reset_is_in_place_and_repeatable(layer_class):
    layer = layer_class(5, 6, structure="fastfood")
    parameters = list(layer.parameters())
    layer.reset_parameters(torch.Generator().manual_seed(3))
    first = {name: t.clone() for name, t in layer.state_dict().items()}
    assert all(a is b for a, b in zip(parameters, layer.parameters(), strict=True))
    layer.reset_parameters(torch.Generator().manual_seed(4))
    assert not any(torch.equal(t, first[name]) for name, t in layer.state_dict().items() if t.numel() > 6)
    layer.reset_parameters(torch.Generator().manual_seed(3))
    assert all(torch.equal(t, first[name]) for name, t in layer.state_dict().items())
    paper = layer_class(64, 64, structure="low_rank", rank=4, init="paper")
    assert paper.weight_ih_l0.G.std().item() == pytest.approx(256**-0.5, rel=0.2)


@every_class
@every_layer
def test_meta_device(layer_class, cls):
    layer = layer_class(5, 6, structure=cls, which="both", device="meta")
    assert all(t.is_meta for t in layer.state_dict().values())
    layer = layer.to_empty(device="cpu")
    layer.reset_parameters()
    real = layer_class(5, 6, structure=cls, which="both")
    real.load_state_dict(layer.state_dict())
    x = torch.randn(3, 2, 5)
    assert torch.equal(layer(x)[0], real(x)[0])


# Products.


@every_layer
@pytest.mark.parametrize("product", ["auto", "fast", "dense"])
def test_torch_runs_small_weights(layer_class, product, monkeypatch):
    """Dense weights go to torch's own function at once, others step by step; large ones stay."""
    stepped, run = [], layer_class._run_steps
    monkeypatch.setattr(layer_class, "_run_steps", lambda *some: stepped.append(1) or run(*some))
    layer = layer_class(5, 6, 2, bidirectional=True, structure="low_rank", which="both")
    layer.product = product
    x = pack_sequence([torch.randn(steps, 5) for steps in (4, 3, 1)])
    (output, state), (expected, after) = layer(x), layer.to_torch().double()(x.double())
    assert bool(stepped) == (product == "fast")
    states = [(s if isinstance(s, tuple) else (s,)) for s in (state, after)]
    for found, wanted in zip((output.data, *states[0]), (expected.data, *states[1]), strict=True):
        assert torch.allclose(found.double(), wanted, atol=1e-6)
    output.data.sum().backward()
    assert all(p.grad is not None for p in layer.parameters())
    large = layer_class(4096, 4097, structure="low_rank", device="meta")
    assert not large._takes_dense("weight_ih_l0")
    with pytest.raises(
        ValueError, match=f"{layer_class.__name__}: product must be one of auto, fast, dense, got 'slow'"
    ):
        layer.product = "slow"


@every_layer
def test_the_fast_product_makes_no_dense_matrix(layer_class, monkeypatch):
    layer = layer_class(5, 6, which="both")
    layer.product = "fast"
    monkeypatch.setattr(torchldr.nn.MatrixStack, "dense", None)
    layer(torch.randn(3, 2, 5))[0].sum().backward()


def test_every_parameter_gets_a_gradient():
    layer = StructuredLSTM(5, 6, 2, bidirectional=True, proj_size=3, which="both")
    layer(torch.randn(4, 3, 5))[0].square().sum().backward()
    for name, p in layer.named_parameters():
        assert p.grad.abs().sum() > 0, name


# One step, and its export.


@every_layer
def test_steps_one_by_one_are_the_sequence(layer_class):
    layer = layer_class(5, 6, 2, dtype=torch.float64)
    x = torch.randn(4, 3, 5, dtype=torch.float64)
    want, last = layer(x)
    step, state, outputs = layer.step(), None, []
    for x_t in x:
        y, state = step(x_t, state)
        outputs.append(y)
    assert torch.allclose(torch.stack(outputs), want, rtol=0, atol=1e-14)
    for a, b in zip(torch.atleast_1d(state), torch.atleast_1d(last), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("layer_class", "structure"), [(StructuredLSTM, "ldr_sd"), (StructuredGRU, "toeplitz_like")]
)
def test_export_of_one_step(layer_class, structure):
    layer = layer_class(5, 6, structure=structure).eval()
    batch = torch.export.Dim("batch", min=2, max=64)

    def inputs(size):
        state = tuple(torch.randn(1, size, 6) for _ in layer.state_names)
        return torch.randn(size, 5), state if len(state) > 1 else state[0]

    axes = ({1: batch},) * len(layer.state_names)
    shapes = ({0: batch}, axes if len(axes) > 1 else axes[0])
    with torch.no_grad():
        program = torch.export.export(layer.step(), inputs(3), dynamic_shapes=shapes)
        for size in (3, 7):
            x, hx = inputs(size)
            got, want = program.module()(x, hx), layer.step()(x, hx)
            for a, b in zip([got[0], *got[1]], [want[0], *want[1]], strict=True):
                assert torch.allclose(a, b, atol=1e-6)


def test_compiles_without_a_break():
    layer = StructuredLSTM(5, 6, structure="low_rank", which="both")
    x = torch.randn(2, 3, 5)
    want = layer(x)[0]
    exact = torch.autograd.grad(want.sum(), list(layer.parameters()))
    got = torch.compile(layer, backend="aot_eager", fullgraph=True)(x)[0]
    assert torch.allclose(got, want, atol=1e-6)
    for a, b in zip(torch.autograd.grad(got.sum(), list(layer.parameters())), exact, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_what_older_compilers_take():
    """torch 2.8 breaks a graph at properties of named tuples."""
    assert not [name for name, part in vars(Given).items() if isinstance(part, property)]


def test_one_step_needs_one_direction():
    with pytest.raises(ValueError, match="a bidirectional layer needs whole sequences"):
        StructuredGRU(4, 5, bidirectional=True).step()
    step = StructuredGRU(4, 5).step()
    with pytest.raises(ValueError, match=r"RecurrentStep: the input must have shape \(batch, input_size\)"):
        step(torch.randn(3, 2, 4))


# Errors: each says who, which rule, and what came.


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"input_size": 0}, ValueError, "StructuredLSTM: input_size must be at least 1, got 0"),
        ({"hidden_size": 2.0}, TypeError, "StructuredLSTM: hidden_size must be an int, got 2.0"),
        ({"num_layers": 0}, ValueError, "num_layers must be at least 1, got 0"),
        ({"proj_size": 8}, ValueError, "proj_size must be below hidden_size=8, got 8"),
        ({"proj_size": -1}, ValueError, "proj_size must be at least 0, got -1"),
        ({"bias": 1}, TypeError, "bias must be True or False, got 1"),
        ({"dropout": 1.5}, ValueError, "dropout must be a probability between 0 and 1, got 1.5"),
        ({"which": "all"}, ValueError, "which must be one of input, hidden, both, got 'all'"),
        ({"init": "lstm"}, ValueError, "init must be one of linear, paper, got 'lstm'"),
        ({"structure": "ldr"}, ValueError, "unknown structure 'ldr'"),
        ({"rank": 9}, ValueError, r"StructuredLSTM: rank must be between 1 and 8"),
        ({"rnk": 2}, TypeError, "StructuredLSTM: unknown keyword 'rnk'. Did you mean 'rank'"),
        ({"batchfirst": True}, TypeError, "Did you mean 'batch_first'"),
        ({"dtype": torch.int64}, TypeError, "dtype must be real floating point, got torch.int64"),
    ],
)
def test_errors_at_construction(kwargs, error, message):
    with pytest.raises(error, match=message):
        StructuredLSTM(**{"input_size": 12, "hidden_size": 8, **kwargs})


def test_errors_of_the_gru_and_a_warning():
    with pytest.raises(ValueError, match="StructuredGRU: proj_size is for the LSTM alone, got 3"):
        StructuredGRU(4, 5, proj_size=3)
    for layer in (StructuredGRU, StructuredLSTM):
        with pytest.warns(UserWarning, match="dropout=0.5 has no effect with one layer") as told:
            layer(4, 5, dropout=0.5)
        assert told[0].filename == __file__


@pytest.mark.parametrize(
    ("x", "hx", "error", "message"),
    [
        (torch.randn(3, 2, 5), None, ValueError, r"StructuredLSTM: the input must have shape \(steps, batch, "
         r"input_size=4\) or, for one sequence, \(steps, input_size=4\), got \(3, 2, 5\)"),
        (torch.randn(4), None, ValueError, r"got \(4,\)"),
        (torch.randn(0, 2, 4), None, ValueError, "at least one step"),
        (pack_sequence([torch.randn(3, 5)]), None, ValueError, r"packed data must have shape \(all steps, "),
        ([1.0], None, TypeError, "expected a tensor or a PackedSequence, got list"),
        (torch.randn(3, 2, 4).double(), None, TypeError, "has dtype torch.float64, the weights"),
        (torch.ones(3, 2, 4).long(), None, TypeError, "must be real floating point, got torch.int64"),
        (torch.empty(3, 2, 4, device="meta"), None, ValueError, "the input is on meta, the weights on cpu"),
        (torch.randn(3, 2, 4), torch.zeros(1, 2, 5), TypeError, "hx must be h_0 and c_0, got Tensor"),
        (torch.randn(3, 2, 4), (torch.zeros(1, 2, 5), torch.zeros(1, 3, 5)), ValueError,
         r"c_0 must have shape \(1, 2, 5\), got \(1, 3, 5\)"),
        (torch.randn(3, 4), (torch.zeros(1, 2, 5), torch.zeros(1, 2, 5)), ValueError,
         r"h_0 must have shape \(1, 5\), got \(1, 2, 5\)"),
    ],
)  # fmt: skip
def test_errors_for_inputs(x, hx, error, message):
    with pytest.raises(error, match=message):
        StructuredLSTM(4, 5)(x, hx)


def test_errors_for_weights():
    with pytest.raises(TypeError, match="weight_ih_l0 has structure 'ldr_sd'; only 'dense' holds any weight"):
        StructuredLSTM(4, 5).load_dense_weights(nn.LSTM(4, 5))
    dense = StructuredLSTM(4, 5, structure="dense", which="both")
    with pytest.raises(ValueError, match="the weights lack bias_ih_l0"):
        dense.load_dense_weights(nn.LSTM(4, 5, bias=False))
    with pytest.raises(ValueError, match=r"weight_ih_l0 must have shape \(20, 4\), got \(20, 3\)"):
        dense.load_dense_weights(nn.LSTM(3, 5))
    with pytest.raises(ValueError, match="unexpected weights weight_ih_l1"):
        dense.load_dense_weights(nn.LSTM(4, 5, 2))
    with pytest.raises(TypeError, match=r"StructuredGRU.from_torch: expected an nn.GRU, got LSTM"):
        StructuredGRU.from_torch(nn.LSTM(4, 5))
    with pytest.raises(ValueError, match="no layer 1 with reverse=False"):
        dense.matrices(1)


def test_repr():
    layer = StructuredLSTM(
        12, 16, 2, batch_first=True, proj_size=4, structure="block_circulant", block_size=4
    )
    head = "12, 16, num_layers=2, batch_first=True, proj_size=4, structure='block_circulant', block_size=4"
    assert head + ", which='input'" in repr(layer)
    assert "(weight_ih_l0): MatrixStack(4 of in_features=12, out_features=16" in repr(layer)
    layer.product = "fast"
    assert "product='fast'" in repr(layer)
