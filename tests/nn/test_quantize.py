"""Weights in int8 and int16: rounding, what the model holds, what it saves."""

from __future__ import annotations

import copy
import sys
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import torchldr.compress
from torchldr import StructuredChannels, StructuredGRU, StructuredLinear, quantize_, structures
from torchldr.core.storage import (
    AROUND_ONE,
    AROUND_ZERO,
    FLOAT,
    INT8,
    rounded,
    stored_bytes,
    straight_through,
)

CLASSES = list(structures().values())
every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)


@given(
    st.sampled_from([INT8, AROUND_ONE, AROUND_ZERO]),
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.integers(0, 1),
    st.integers(0, 99),
)
def test_no_entry_moves_by_more_than_half_a_scale(storage, shape, lead, seed):
    t = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    made = rounded(t, storage, min(lead, len(shape) - 1))
    assert made.integers.dtype == storage.dtype
    assert made.integers.shape == t.shape
    rounding = 4 * torch.finfo(t.dtype).eps * (t.abs() + abs(storage.offset))  # of scale * integer + offset
    assert ((made.value() - t).abs() <= made.scale / 2 + rounding).all()
    again = rounded(made.value(), storage, min(lead, len(shape) - 1))
    assert torch.equal(again.integers, made.integers)
    count = t.numel() * storage.dtype.itemsize + 4 * made.scale.numel()
    assert count == stored_bytes(tuple(shape), storage, min(lead, len(shape) - 1))


@pytest.mark.parametrize("storage", [INT8, AROUND_ONE, AROUND_ZERO])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1e2, 1.0, 1e-2, 1e-4, 1e-6])
def test_narrow_dtypes(storage, dtype, size):
    """The largest entry of an operator changed its sign, and scales of the smallest numbers became zero."""
    limits = torch.finfo(dtype)
    t = (size * torch.randn(7, 9, generator=torch.Generator().manual_seed(0)) + storage.offset).to(dtype)
    made = rounded(t, storage)
    assert made.scale.dtype == made.value().dtype == dtype
    t, off = t.double(), (made.value().double() - t.double()).abs()
    rounding = 2 * limits.eps * (t.abs() + storage.offset) + 2 * limits.tiny * limits.eps
    assert (off <= made.scale.double() / 2 + rounding).all()
    if t.ne(storage.offset).any():
        largest = (t - storage.offset).abs().max() / storage.largest
        assert (made.scale.double() <= 1.01 * largest + limits.tiny * limits.eps).all()


def test_a_scale_for_each_vector_row_or_operator():
    assert rounded(torch.randn(3, 7)).scale.shape == (3, 1)
    assert rounded(torch.randn(4, 3, 7), lead=1).scale.shape == (4, 3, 1)
    assert rounded(torch.randn(4, 3, 2, 2)).scale.shape == (4, 1, 1, 1)
    assert rounded(torch.randn(7)).scale.shape == (1,)
    assert rounded(torch.ones(5), AROUND_ONE).value().tolist() == [1.0] * 5
    assert rounded(torch.zeros(2, 5)).value().eq(0).all()


def test_gradients_go_through():
    t = torch.randn(3, 7, requires_grad=True)
    y = straight_through(t)
    assert torch.equal(y, rounded(t).value())
    y.square().sum().backward()
    torch.testing.assert_close(t.grad, 2 * y.detach())
    assert straight_through(t, FLOAT) is t


@every_class
def test_a_layer_holds_integers_and_saves_them(cls):
    layer = StructuredLinear(12, 10, structure=cls.name).eval()
    x = torch.randn(3, 12)
    before = layer(x).detach()
    bytes_before = sum(t.nbytes for t in layer.state_dict().values())
    made = quantize_(layer)
    assert made is layer
    y = layer(x).detach()
    assert 0 < (y - before).norm() / before.norm() < 0.1
    assert sum(t.nbytes for t in layer.state_dict().values()) < 0.75 * bytes_before
    kept = {t.dtype for name, t in layer.state_dict().items() if name.endswith("original1")}
    assert kept <= {torch.int8, torch.int16}
    assert torch.int8 in kept
    other = quantize_(StructuredLinear(12, 10, structure=cls.name).eval())
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), y)
    with torch.no_grad():
        assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    assert torch.equal(quantize_(layer)(x), y)  # twice is once
    # The values are those of the function that the C export rounds with.
    fresh = StructuredLinear(12, 10, structure=cls.name)
    for name in fresh._learned:
        storage = cls.stored.get(name, INT8)
        if storage != FLOAT:
            wanted = rounded(getattr(fresh, name), storage).value()
            quantize_(fresh)
            assert torch.equal(getattr(fresh, name), wanted)


def test_operators_are_int16_around_one():
    layer = StructuredLinear(64, 64, structure="ldr_td")
    with torch.no_grad():
        layer.subdiagonal_A.uniform_(0.8, 1.2)
        exact = layer.subdiagonal_A.clone()
    quantize_(layer)
    assert (layer.subdiagonal_A - exact).abs().max() <= 0.2 / 32767
    assert "corners_A" in dict(layer.named_parameters())


def test_torch_layers_recurrent_layers_and_channels():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 5), nn.BatchNorm1d(5)).eval()
    x = torch.randn(1, 2, 4, 4)
    before = model(x)
    quantize_(model)
    torch.testing.assert_close(model(x), before, rtol=0.1, atol=0.05)
    assert model[0].weight.shape == (3, 2, 3, 3)
    assert model[3].weight.dtype == torch.float32
    for layer, v in (
        (StructuredGRU(6, 8, bias=False, which="both"), torch.randn(4, 1, 6)),
        (StructuredChannels(2, 3, (4, 4)), torch.randn(1, 2, 4, 4)),
    ):
        layer.eval()
        first = torch.utils._pytree.tree_leaves(layer(v))[0]
        quantize_(layer)
        torch.testing.assert_close(torch.utils._pytree.tree_leaves(layer(v))[0], first, rtol=0.1, atol=0.05)


def test_weights_that_are_not_finite_are_named():
    """NaN became a number."""
    model = nn.Sequential(nn.Linear(4, 4), StructuredLinear(4, 4, structure="ldr_sd"))
    with torch.no_grad():
        model[1].subdiagonal_A[0] = torch.nan
    with pytest.raises(ValueError, match=r"quantize_: 1\.subdiagonal_A has entries that are not finite"):
        quantize_(model)
    assert type(model[0]) is nn.Linear


def test_weights_that_are_computed_are_named():
    """The layers before were rounded already, and the error spoke of leaf variables."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    nn.utils.prune.l1_unstructured(model[1], "weight", 0.5)
    with pytest.raises(ValueError, match=r"quantize_: 1\.weight is no parameter but computed"):
        quantize_(model)
    assert type(model[0]) is nn.Linear
    nn.utils.prune.remove(model[1], "weight")
    assert quantize_(model)[1].weight.count_nonzero() == 8


def test_a_weight_that_an_embedding_shares_is_trained_there():
    table, head = nn.Embedding(6, 4), nn.Linear(4, 6)
    head.weight = table.weight
    quantize_(head)
    assert table.weight.requires_grad
    assert not any(p.requires_grad for p in head.parametrizations.parameters())


def test_tied_weights_are_kept_once():
    """Integers stood beside the float table, and twice for two layers."""
    model = nn.Sequential(nn.Embedding(6, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6))
    model[1].weight = model[0].weight
    model[3].weight = model[2].weight
    quantize_(model, training=True)
    quantize_(model)
    assert model[1].weight is model[0].weight
    first, second = model[2].parametrizations.weight, model[3].parametrizations.weight
    assert first.original0 is second.original0
    assert first.original1 is second.original1
    quantize_(model, where=lambda name, module: name == "1")  # where it is asked for
    assert model[1].parametrizations.weight.original1.dtype == torch.int8
    assert model[0].weight.requires_grad


@pytest.mark.parametrize("layer", [nn.Linear(4, 4), StructuredLinear(4, 4, structure="dense")])
def test_rounding_a_copy_leaves_parametrizations_of_the_original(layer):
    """Both have the class that torch made for them, and the original lost its weight."""
    nn.utils.parametrizations.weight_norm(layer)
    x = torch.randn(3, 4)
    y = layer(x)
    assert (quantize_(copy.deepcopy(layer))(x) - y).norm() < 0.1 * y.norm()
    assert torch.equal(layer(x), y)


def test_where_says_which_modules():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    quantize_(model, where=lambda name, module: name == "1")
    assert "weight" in dict(model[0].named_parameters())
    assert "weight" not in dict(model[1].named_parameters())


@pytest.mark.parametrize("training", [False, True])
def test_rounded_layers_take_no_adapters(training, monkeypatch):
    """Merging wrote to a copy of the weight, so that the adapter was lost without a word."""

    class Adapter(nn.Module):
        def __init__(self, base_layer):
            super().__init__()
            self.base_layer = base_layer

    peft = "peft.tuners.tuners_utils"
    monkeypatch.setitem(sys.modules, peft, SimpleNamespace(BaseTunerLayer=Adapter))
    model = quantize_(nn.Sequential(nn.Linear(4, 4), nn.Conv2d(1, 1, 3), nn.Tanh()), training=training)
    for layer in model[:2]:
        with pytest.raises(ValueError, match=r"adapter of peft could not be merged .*quantize_ has rounded"):
            Adapter(layer)
        nn.Sequential(layer)
    for layer in (model[2], nn.Linear(4, 4), quantize_(StructuredLinear(4, 4))):
        assert Adapter(layer).base_layer is layer


def test_training_with_rounded_weights():
    torch.manual_seed(0)
    model = nn.Sequential(StructuredLinear(8, 8, structure="ldr_sd"), nn.Linear(8, 1))
    x = torch.randn(64, 8)
    y = x[:, :1] - x[:, 5:6]
    quantize_(model, training=True)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    trained = model(x).detach()
    quantize_(model)
    assert torch.equal(model(x), trained)
    assert not any(p.requires_grad for name, p in model.named_parameters() if "original" in name)


def test_finetuning_with_rounded_weights_knows_the_operators():
    model = nn.Sequential(StructuredLinear(16, 16, structure="ldr_sd"), nn.Linear(16, 3))
    names = [[g["name"], len(g["params"])] for g in torchldr.compress.parameter_groups(model, 1e-3)]
    quantize_(model, training=True)
    assert [[g["name"], len(g["params"])] for g in torchldr.compress.parameter_groups(model, 1e-3)] == names
    x = torch.randn(64, 16)
    data = [(x, x[:, :3].argmax(-1))]
    losses = torchldr.finetune(model, data, epochs=20, lr=1e-2).losses
    assert losses[-1] < 0.8 * losses[0]
    before = model(x).detach()
    assert torch.equal(quantize_(model)(x), before)


def test_what_is_no_model():
    with pytest.raises(TypeError, match=r"must be an nn\.Module"):
        quantize_(torch.zeros(3))
