"""Layers that are built, loaded, copied or moved under inference mode: a plan is kept and never stale."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import torchldr
from torchldr import StructuredLinear
from torchldr.nn.tensors import count_edits_, counts_edits

N = 64
STRUCTURES = ["ldr_sd", "ldr_td", "toeplitz_like", "circulant", "fastfood", "cauchy_like"]


def made(structure: str = "ldr_sd") -> StructuredLinear:
    return StructuredLinear(N, N, structure=structure).eval()


def numbers(layer):
    return {name: t.clone() for name, t in layer.state_dict().items()}


def built(layer):
    other = made(layer.structure.name)
    other.load_state_dict(layer.state_dict())
    return other


def assigned(layer):
    other = made(layer.structure.name)
    other.load_state_dict(numbers(layer), assign=True)
    return other


def pickled(layer):
    return pickle.loads(pickle.dumps(layer))


def saved(layer):
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def moved(layer):
    return copy.deepcopy(layer).double().float()


def stayed(layer):
    """A conversion that changes nothing."""
    return copy.deepcopy(layer).to("cpu")


def emptied(layer):
    other = (
        StructuredLinear(N, N, structure=layer.structure.name, device="meta").to_empty(device="cpu").eval()
    )
    other.load_state_dict(layer.state_dict())
    return other


WAYS = {f.__name__: f for f in (built, assigned, copy.deepcopy, pickled, saved, moved, stayed, emptied)}
every_way = pytest.mark.parametrize("way", WAYS)


def learned(layer) -> nn.Parameter:
    return next(p for p in layer.parameters() if p.ndim)


def by_edit(layer):
    learned(layer).add_(0.5)


def by_copy(layer):
    learned(layer).copy_(learned(layer) + 0.5)


def by_data(layer):
    learned(layer).data.add_(0.5)


def by_new_data(layer):
    learned(layer).data = learned(layer).data + 0.5


def by_alias(layer):
    learned(layer).detach().add_(0.5)


def by_state_dict(layer):
    layer.load_state_dict(
        {name: 1.5 * t if t.is_floating_point() else t for name, t in numbers(layer).items()}
    )


def by_assignment(layer):
    state = {name: 1.5 * t if t.is_floating_point() else t for name, t in numbers(layer).items()}
    layer.load_state_dict(state, assign=True)


def by_vector(layer):
    vector = nn.utils.parameters_to_vector(layer.parameters()) + 0.5
    nn.utils.vector_to_parameters(vector, layer.parameters())
    layer(torch.randn(1, N))
    vector.add_(0.5)  # the parameters are parts of it


def by_foreach(layer):
    torch._foreach_add_([*layer.parameters()], 0.5)


def by_reset(layer):
    layer.reset_parameters()


CHANGES = {
    f.__name__: f
    for f in (by_edit, by_copy, by_data, by_new_data, by_alias, by_state_dict, by_assignment, by_vector)
} | {"by_foreach": by_foreach, "by_reset": by_reset}


def exact(layer, x):
    return x.double() @ layer.matrix().double().to_dense().mT + layer.bias.double()


@every_way
@pytest.mark.parametrize("structure", STRUCTURES)
def test_it_keeps_a_plan_and_gives_the_same_numbers(way, structure):
    outside, x = made(structure), torch.randn(3, N)
    with torch.inference_mode():
        inside = WAYS[way](outside)
        assert torch.equal(inside(x), outside(x))
        kept = inside._plan
        assert kept.prepared() == outside._plan.prepared()
        inside(x)
        assert inside._plan is kept
        assert inside.routes(x).note == ""
        assert inside.routes(x).chosen == outside.routes(x).chosen


@every_way
@pytest.mark.parametrize("change", CHANGES)
def test_no_change_leaves_a_stale_plan(way, change):
    x = torch.randn(3, N)
    with torch.inference_mode():
        layer = WAYS[way](made("toeplitz_like"))
        before = [layer(x) for _ in range(2)][-1].clone()
        for _ in range(2):
            CHANGES[change](layer)
            for _ in range(2):
                torch.testing.assert_close(layer(x).double(), exact(layer, x), rtol=1e-4, atol=1e-4)
        assert not torch.equal(layer(x), before)


@every_way
@pytest.mark.parametrize("structure", STRUCTURES)
def test_edits_are_counted_there(way, structure):
    """What a plan on a GPU goes by: each tensor has a count, and edits under inference mode add to it."""
    with torch.inference_mode():
        layer = WAYS[way](made(structure))
        assert all(map(counts_edits, layer.matrix().tensors.values()))
        for p in layer.parameters():
            before = p._version
            p.add_(0.5)
            p.detach().add_(0.5)
            assert p._version == before + 2


@every_way
@pytest.mark.parametrize("structure", STRUCTURES)
def test_it_serves_outside_and_can_be_trained(way, structure):
    with torch.inference_mode():
        layer = WAYS[way](made(structure))
        layer(torch.randn(3, N))
    x = torch.randn(3, N)
    with torch.no_grad():
        torch.testing.assert_close(layer(x).double(), exact(layer, x), rtol=1e-4, atol=1e-4)
    layer.train()(x).square().sum().backward()
    assert all(p.grad is not None and p.requires_grad for p in layer.parameters())


@pytest.mark.parametrize("structure", STRUCTURES)
def test_what_was_built_inside_can_be_converted_outside(structure):
    """torch leaves parameters without a count here, neither inside nor outside."""
    with torch.inference_mode():
        layer = made(structure)
        for p in layer.parameters():  # as they were before layers took care of it
            torch.utils.swap_tensors(p, nn.Parameter(p.clone()))
        assert learned(layer).is_inference()
    layer.double()
    x = torch.randn(3, N, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), exact(layer, x))
        learned(layer).add_(0.5)
        torch.testing.assert_close(layer(x), exact(layer, x))


def test_tied_parameters_and_their_attributes_stay():
    with torch.inference_mode():
        model = nn.Sequential(made(), made())
        model[0].G = model[1].G = tied = nn.Parameter(model[0].G.clone())
        tied.note = "kept"
        model.to("cpu")
        assert model[0].G is model[1].G is tied
        assert tied.note == "kept"
        assert counts_edits(tied)
        copied = copy.deepcopy(model)
        assert copied[1].G is copied[0].G


def test_a_dense_weight_is_not_copied():
    """Its plan reads it where it is."""
    weight = torch.randn(N, N)
    with torch.inference_mode():
        layer = StructuredLinear(N, N, bias=False, structure="dense").eval()
        other = weight.clone()
        layer.load_state_dict({"weight": other}, assign=True)
        x = torch.randn(3, N)
        layer(x)
        other.mul_(2)
        torch.testing.assert_close(layer(x), 2 * x @ weight.mT)


def test_a_parameter_that_someone_watches_stays_as_it_is():
    """torch exchanges the contents of no tensor that has weak references, such as those of a compiler."""
    import weakref

    with torch.inference_mode():
        layer = made()
        layer.G = nn.Parameter(layer.G.clone())
        watch = weakref.ref(layer.G)
        before, x = layer.G, torch.randn(3, N)
        count_edits_(layer)
        assert watch() is before is layer.G
        assert before.is_inference()
        for _ in range(2):
            torch.testing.assert_close(layer(x).double(), exact(layer, x), rtol=1e-4, atol=1e-4)
            layer.G.add_(0.5)


@pytest.mark.parametrize("make", [
    lambda: torchldr.StructuredLSTM(12, 8, which="both"),
    lambda: torchldr.StructuredChannels(2, 3, features=6),
])  # fmt: skip
def test_parts_of_other_layers_count_edits_too(make):
    outside = make().eval()
    with torch.inference_mode():
        for layer in (make().eval(), copy.deepcopy(outside), copy.deepcopy(outside).double().float()):
            parts = [part for part in layer.modules() if hasattr(part, "_learned")]
            assert parts
            assert all(counts_edits(t) for part in parts for t in part.matrix().tensors.values())
