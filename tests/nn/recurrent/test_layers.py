"""StructuredLSTM and StructuredGRU compute what torch's layers compute with the same dense weights."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils._pytree import tree_map

import torchldr
from torchldr import StructuredGRU, StructuredLSTM, testing
from torchldr.nn.recurrent.base import arguments_of

LAYERS = [(StructuredLSTM, nn.LSTM), (StructuredGRU, nn.GRU)]
CLASSES = list(torchldr.structures().values())
every_layer = pytest.mark.parametrize(("ours", "theirs"), LAYERS, ids=["lstm", "gru"])
every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)


def parts(output):
    """All tensors of what a recurrent layer returns."""
    sequences, state = output
    data = sequences.data if isinstance(sequences, PackedSequence) else sequences
    return [data, *(state if isinstance(state, tuple) else (state,))]


def moved(layer):
    """The layer with its operators away from where training starts, and the matrices by their names."""
    with torch.no_grad():
        for stack in layer._stacks().values():
            stack.structure.draw_operators_(stack.matrix().tensors)
    return layer


def oracle(layer):
    """The weights by torch's names, from the definition of each structured matrix, differentiable."""
    weights = {}
    for name in [*layer._parameters, *layer._stacks()]:
        part = getattr(layer, name)
        if name in layer._stacks():
            part = torch.cat([M.to_dense() for M in part.matrix()])
        weights[name] = part
    return weights


def run_oracle(layer, x, hx=None):
    dense = layer.torch_class(**arguments_of(layer), dtype=next(layer.parameters()).dtype)
    return torch.func.functional_call(dense.train(layer.training), oracle(layer), (x, hx))


def bound(layer, x, steps, dtype=torch.float64):
    """How far an output may be off: in each step every gate adds at most 50 eps (1 + log2 n) |W| |x|, and
    the gates do not amplify what came before."""
    weights = oracle(layer).values()
    size = max(float(w.detach().abs().sum(-1).max()) for w in weights)
    n = max(layer.input_size, 2 * layer.hidden_size)
    return testing.tolerance(dtype, n) * steps * layer.num_layers * size * (1 + float(x.detach().abs().max()))


def assert_close(got, want, limit):
    for a, b in zip(parts(got), parts(want), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        assert (a - b).abs().max() <= limit


@every_layer
def test_dense_weights_give_the_same_numbers(ours, theirs):
    """Bit for bit: with dense matrices it is the same computation."""
    for num_layers, bias, batch_first, bidirectional, proj in itertools.product(
        (1, 2), (True, False), (True, False), (True, False), (0, 3)
    ):
        if proj and theirs is nn.GRU:
            continue
        extra = {"proj_size": proj} if proj else {}
        dense = theirs(5, 7, num_layers, bias, batch_first, 0.0, bidirectional, **extra)
        layer = ours.from_torch(dense)
        x = torch.randn(4, 3, 5)
        for got, want in zip(parts(layer(x)), parts(dense(x)), strict=True):
            assert torch.equal(got, want)
        back = layer.to_torch()
        assert type(back) is theirs
        assert all(torch.equal(a, b) for a, b in zip(back.parameters(), dense.parameters(), strict=True))


@settings(max_examples=40)
@given(data=st.data())
def test_values_are_those_of_torch_on_the_dense_matrices(data):
    """Every structure, side, product, layout, with a state given or not, packed or not."""
    draw = data.draw
    ours, _ = draw(st.sampled_from(LAYERS))
    cls = draw(st.sampled_from(CLASSES))
    torch.manual_seed(draw(st.integers(0, 999)))
    n, h, batch, steps = (draw(st.integers(low, 9)) for low in (1, 2, 1, 1))
    proj = draw(st.integers(0, h - 1)) if ours is StructuredLSTM else 0
    layer = ours(
        n,
        h,
        draw(st.integers(1, 2)),
        draw(st.booleans()),
        draw(st.booleans()),
        bidirectional=draw(st.booleans()),
        dtype=torch.float64,
        structure=cls,
        which=draw(st.sampled_from(["input", "hidden", "both"])),
        **({"proj_size": proj} if proj else {}),
    )
    layer.product = draw(st.sampled_from(["auto", "fast", "dense"]))
    layer = moved(layer).train(draw(st.booleans()))
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    kind = draw(st.sampled_from(["padded", "alone", "packed", "packed, not sorted"]))
    shape = (batch, steps, n) if layer.batch_first else (steps, batch, n)
    x = torch.randn((steps, n) if kind == "alone" else shape, dtype=torch.float64)
    if kind.startswith("packed"):
        lengths = [draw(st.integers(1, steps)) for _ in range(batch)]
        lengths = lengths if "not" in kind else sorted(lengths, reverse=True)
        sequences = pack_padded_sequence(x, lengths, layer.batch_first, enforce_sorted="not" not in kind)
    else:
        sequences = x
    hx = None
    if draw(st.booleans()):
        sizes = [proj or h, h] if ours is StructuredLSTM else [h]
        middle = () if kind == "alone" else (batch,)
        hx = tuple(torch.randn(count, *middle, size, dtype=torch.float64) for size in sizes)
        hx = hx if ours is StructuredLSTM else hx[0]
    limit = bound(layer, x, steps)
    for no_grad in (False, True):
        with torch.set_grad_enabled(not no_grad):
            assert_close(layer(sequences, hx), run_oracle(layer, sequences, hx), limit)


@every_class
@every_layer
def test_gradients_are_those_of_the_dense_oracle(ours, theirs, cls):
    """Of the input, the state and every parameter, by both products; each within 50 eps (1 + log2 n) of the
    largest entry for each of the steps and hidden entries that it is a sum over."""
    steps, n, h = 4, 6, 5
    layer = moved(
        ours(n, h, dtype=torch.float64, structure=cls, which="both", rank=2 if cls.ranked else None)
    )
    x = torch.randn(steps, 3, n, dtype=torch.float64, requires_grad=True)
    state = [torch.randn(1, 3, h, dtype=torch.float64, requires_grad=True) for _ in layer.state_names]
    hx = tuple(state) if len(state) > 1 else state[0]
    leaves = [x, *state, *layer.parameters()]
    target = torch.randn(steps, 3, h, dtype=torch.float64)

    def gradients(output):
        loss = (parts(output)[0] * target).sum() + sum(part.square().sum() for part in parts(output)[1:])
        return torch.autograd.grad(loss, leaves)

    want = gradients(run_oracle(layer, x, hx))
    limit = testing.tolerance(torch.float64, n) * steps * h * max(g.abs().max() for g in want)
    for product in ("dense", "fast"):
        layer.product = product
        for leaf, got, exact in zip(leaves, gradients(layer(x, hx)), want, strict=True):
            assert got.shape == leaf.shape
            assert (got - exact).abs().max() <= limit


def test_packed_gradients():
    layer = moved(StructuredLSTM(4, 6, bidirectional=True, dtype=torch.float64, which="both"))
    x = torch.randn(5, 3, 4, dtype=torch.float64)
    packed = pack_padded_sequence(x, [2, 5, 3], enforce_sorted=False)
    targets = [torch.randn_like(part) for part in parts(layer(packed))]

    def gradients(output):  # of the outputs and of the last states, which have an order of their own
        loss = sum((part * target).sum() for part, target in zip(parts(output), targets, strict=True))
        return torch.autograd.grad(loss, list(layer.parameters()))

    want = gradients(run_oracle(layer, packed))
    layer.product = "fast"
    got = gradients(layer(packed))
    limit = testing.tolerance(torch.float64, 6) * 10 * 6 * max(g.abs().max() for g in want)
    assert all((a - b).abs().max() <= limit for a, b in zip(got, want, strict=True))


@every_layer
def test_the_update_equations(ours, theirs):
    """Written out, as in the paper's appendix, on the matrices by their names."""
    layer = moved(ours(4, 5, dtype=torch.float64, which="both"))
    M = {name: matrix.to_dense() for name, matrix in layer.matrices().items()}
    b_i = dict(zip(layer.gates, layer.bias_ih_l0.chunk(len(layer.gates)), strict=True))
    b_h = dict(zip(layer.gates, layer.bias_hh_l0.chunk(len(layer.gates)), strict=True))
    x, h, c = (torch.randn(size, dtype=torch.float64) for size in (4, 5, 5))

    def product(gate):
        return M[f"W_i{gate}"] @ x + b_i[gate] + M[f"W_h{gate}"] @ h + b_h[gate]

    if ours is StructuredLSTM:
        after = product("f").sigmoid() * c + product("i").sigmoid() * product("g").tanh()
        want = product("o").sigmoid() * after.tanh()
        got = layer(x.unsqueeze(0), (h.unsqueeze(0), c.unsqueeze(0)))[0]
    else:
        r, z = product("r").sigmoid(), product("z").sigmoid()
        new = (M["W_in"] @ x + b_i["n"] + r * (M["W_hn"] @ h + b_h["n"])).tanh()
        want = (1 - z) * new + z * h
        got = layer(x.unsqueeze(0), h.unsqueeze(0))[0]
    assert (got.squeeze(0) - want).abs().max() <= bound(layer, x, 1)


@every_layer
@pytest.mark.parametrize("product", ["dense", "fast"])
def test_dropout_acts_between_layers_in_training(ours, theirs, product):
    layer = ours(4, 5, 2, dropout=1.0, structure="low_rank", dtype=torch.float64)
    layer.product = product
    x = torch.randn(3, 2, 4, dtype=torch.float64)
    limit = bound(layer, x, 3)
    assert_close(layer(x), run_oracle(layer, x), limit)
    assert_close(layer.eval()(x), run_oracle(layer, x), limit)
    assert (layer.train()(x)[0] - layer.eval()(x)[0]).abs().max() > 100 * limit
    some = ours(4, 5, 2, dropout=0.5, structure="low_rank")
    some.product = product
    assert not torch.equal(some(x.float())[0], some(x.float())[0])


@every_layer
def test_float32_and_large_inputs(ours, theirs):
    """The fast product of long inputs, held to float64 with the tolerance of float32."""
    layer = ours(900, 120, structure="toeplitz_like")
    layer.product = "fast"
    x = torch.randn(6, 3, 900)
    limit = bound(layer, x, 6, torch.float32)
    want = run_oracle(layer.double(), x.double())
    got = layer.float()(x)
    assert all((a.double() - b).abs().max() <= limit for a, b in zip(parts(got), parts(want), strict=True))


@every_layer
@pytest.mark.parametrize("product", ["dense", "fast"])
def test_bfloat16_is_no_worse_than_torch(ours, theirs, product):
    layer = ours(24, 16, structure="ldr_sd", rank=2, which="both", dtype=torch.bfloat16)
    layer.product = product
    x = torch.randn(5, 8, 24, dtype=torch.bfloat16)
    got = parts(layer(x))
    assert all(t.dtype == torch.bfloat16 for t in got)
    exact = ours(24, 16, structure="ldr_sd", rank=2, which="both", dtype=torch.float64)
    exact.load_state_dict(layer.state_dict())
    want, dense = parts(exact(x.double())), exact.to_torch().to(torch.bfloat16)
    for a, b, c in zip(got, want, parts(dense(x)), strict=True):
        assert (a - b).abs().max() <= 2 * (c - b).abs().max()


@every_layer
@pytest.mark.parametrize("product", ["dense", "fast"])
def test_autocast(ours, theirs, product):
    layer = ours(24, 16, structure="ldr_sd", which="both")
    layer.product = product
    x = torch.randn(5, 8, 24)
    want = parts(layer(x))[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = parts(layer(x))[0]
        output.sum().backward()
    assert (output - want).abs().max() < 20 * torch.finfo(torch.bfloat16).eps
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in layer.parameters())


@every_layer
@pytest.mark.parametrize("product", ["auto", "dense", "fast"])
@pytest.mark.parametrize("arguments", [{"bidirectional": True}, {"batch_first": True, "num_layers": 2}])
def test_vmap(ours, theirs, product, arguments):
    """Over inputs and over parameters, also of gradients; torch's layers raise an error."""
    layer = ours(5, 4, structure="ldr_sd", which="both", dtype=torch.float64, **arguments)
    layer.product = product
    inputs = torch.randn(3, 6, 2, 5, dtype=torch.float64)
    scales = (0.9, 1, 1.1)
    stacked = {name: torch.stack([p.detach() * s for s in scales]) for name, p in layer.named_parameters()}

    def call(parameters, x):
        return parts(torch.func.functional_call(layer, parameters, x))

    def gradient(parameters, x):
        return torch.func.grad(lambda p: sum(t.sin().sum() for t in call(p, x)))(parameters)

    for function in (call, gradient):
        got = torch.vmap(function)(stacked, inputs)
        for i, x in enumerate(inputs):
            want = function({name: t[i] for name, t in stacked.items()}, x)
            torch.testing.assert_close(tree_map(lambda t, i=i: t[i], got), want)


@every_layer
@pytest.mark.parametrize("which", ["input", "hidden", "both"])
def test_torchs_state_dict_loads_into_dense_layers(ours, theirs, which):
    """Inside a model too, whose state_dict stays as it was; wrong sizes are torch's error."""
    arguments = {"num_layers": 2, "bidirectional": True}
    torch_model = nn.Sequential(theirs(5, 4, **arguments))
    model = nn.Sequential(ours(5, 4, structure="dense", which=which, **arguments))
    state = torch_model.state_dict()
    keys = list(state)
    model.load_state_dict(state)
    assert list(state) == keys
    x = torch.randn(6, 3, 5)
    for got, want in zip(parts(model(x)), parts(torch_model(x)), strict=True):
        torch.testing.assert_close(got, want)
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.load_state_dict(nn.Sequential(theirs(7, 4, **arguments)).state_dict())
    structured = nn.Sequential(ours(5, 4, structure="low_rank", which=which, **arguments))
    with pytest.raises(RuntimeError, match="Unexpected key"):
        structured.load_state_dict(state)
