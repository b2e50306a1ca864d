"""Plans under torch.compile: what eager inference keeps, and never stale."""

from __future__ import annotations

import copy
import operator
import pickle

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils._pytree import tree_leaves

from torchldr import StructuredChannels, StructuredGRU, StructuredLinear, StructuredLSTM


@pytest.fixture(scope="module")
def plans() -> None:
    """Older torch says inside of torch.compile that it exports: a layer then shows it no plan."""
    exports = torch.compile(lambda x: x + torch.compiler.is_exporting(), backend="eager")
    if exports(torch.zeros(())) > 0:
        pytest.skip("torch.compiler.is_exporting() holds under torch.compile here")


planned = pytest.mark.parametrize("structure", ["ldr_sd", "ldr_td", "toeplitz_like", "vandermonde_like"])


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, backend="aot_eager", fullgraph=True)


def by_definition(layer, x):
    return x @ layer.matrix().to_dense().mT + layer.bias


@planned
@torch.no_grad()
def test_a_compiled_layer_keeps_the_plan_and_sees_every_edit(structure, plans):
    layer, x = StructuredLinear(12, 9, structure=structure, rank=2).eval(), torch.randn(2, 3, 12)
    run = compiled(layer)
    torch.testing.assert_close(run(x), by_definition(layer, x))
    kept = layer._plan
    assert kept.prepared()
    assert run(x).shape == (2, 3, 9)
    assert layer._plan is kept
    layer.G.data.mul_(2)  # which torch does not count
    torch.testing.assert_close(run(x), by_definition(layer, x))
    layer.H = nn.Parameter(torch.randn_like(layer.H))
    torch.testing.assert_close(run(x), by_definition(layer, x))
    layer.bias.add_(1)
    torch.testing.assert_close(run(x), by_definition(layer, x))


# Layers with a shape of their inputs.
LAYERS = {
    "linear": (lambda: StructuredLinear(12, 9), (3, 12)),
    "lstm": (lambda: StructuredLSTM(6, 8, 2, bidirectional=True, batch_first=True), (3, 4, 6)),
    "projected": (lambda: StructuredLSTM(6, 8, proj_size=3, which="both", structure="ldr_td"), (4, 3, 6)),
    "gru": (lambda: StructuredGRU(6, 8, which="both", structure="toeplitz_like", bias=False), (4, 3, 6)),
    "channels": (lambda: StructuredChannels(2, 3, (3, 4)), (5, 2, 3, 4)),
    "wide": (lambda: StructuredChannels(2, 3, (3, 4), form="wide"), (5, 2, 3, 4)),
}
every_layer = pytest.mark.parametrize("kind", LAYERS)


def plans_of(layer):
    return [module._plan for module in layer.modules() if getattr(module, "_plan", None) is not None]


@every_layer
@torch.no_grad()
def test_numbers_are_those_of_eager_inference(kind, plans):
    make, shape = LAYERS[kind]
    layer, x = make().eval(), torch.randn(shape)
    plain = copy.deepcopy(layer).train()  # which keeps nothing
    run = compiled(layer)
    assert_same(run(x), layer(x))
    kept = plans_of(layer)
    assert kept
    assert_close(run(x), plain(x))
    assert all(map(operator.is_, plans_of(layer), kept))
    for p, q in zip(layer.parameters(), plain.parameters(), strict=True):
        p.data.mul_(1.5)  # which torch does not count
        q.data.mul_(1.5)
    assert_close(run(x), plain(x))
    more = torch.randn(2, *shape[1:]).repeat(1, *[1] * (len(shape) - 1))
    assert_close(run(more), plain(more))


@every_layer
@torch.no_grad()
def test_other_parameters_for_one_call_do_not_meet_the_plan(kind, plans):
    make, shape = LAYERS[kind]
    layer, x = make().eval(), torch.randn(shape)
    other = {name: torch.randn_like(p) / 4 for name, p in layer.named_parameters()}
    run = compiled(lambda parameters, x: torch.func.functional_call(layer, parameters, (x,)))
    run({}, x)
    kept = plans_of(layer)
    assert_close(run(other, x), torch.func.functional_call(copy.deepcopy(layer), other, (x,)))
    assert all(map(operator.is_, plans_of(layer), kept))


@every_layer
@torch.no_grad()
def test_layers_alike_share_what_is_compiled(kind, plans):
    make, shape = LAYERS[kind]
    layers, x = [make().eval() for _ in range(3)], torch.randn(shape)
    graphs = CompileCounter()
    torch._dynamo.reset()
    for layer in layers:
        layer.compile(backend=graphs, fullgraph=True)
        for _ in range(2):  # without a plan, and with one
            assert_close(layer(x), copy.deepcopy(layer).train().forward(x))
    assert graphs.frame_count == 1


@torch.no_grad()
def test_a_route_is_taken_with_other_parameters_too(plans, monkeypatch):
    layer, x, other = StructuredLinear(12, 9).eval(), torch.randn(3, 12), {"G": torch.randn(1, 9)}
    run = compiled(lambda parameters, x: torch.func.functional_call(layer, parameters, (x,)))
    asked = []
    multiply = layer.structure.multiply
    monkeypatch.setattr(
        layer.structure, "multiply", lambda M, x, **how: asked.append(how) or multiply(M, x, **how)
    )
    for setting in ({"route": "dense"}, {"route": None, "plan": "fast"}):
        for name, value in setting.items():
            setattr(layer, name, value)
        run(other, x)
    assert [(how["route"], how["dense"]) for how in asked[-2:]] == [("dense", None), (None, False)]


@torch.no_grad()
def test_the_first_call_conjugates_and_maps(plans, monkeypatch):
    """torch 2.13 excludes both in the first call of a compiled function."""
    layer, x = StructuredLinear(12, 9).eval(), torch.randn(3, 12)

    def infer(self, x):
        z = torch.fft.fft(x[:, :9])
        return [torch.vmap(lambda row: (row[:9].conj() * 1j).real.clone())(z)]

    monkeypatch.setattr(StructuredLinear, "_infer", infer)
    assert_close(compiled(layer)(x), infer(layer, x)[0])


def assert_close(found, wanted):
    torch.testing.assert_close(found, wanted)


def assert_same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_gradients_are_wanted_or_not(plans):
    layer, x = StructuredLinear(12, 9).eval(), torch.randn(3, 12)
    run = compiled(layer)
    y = run(x)
    assert layer._plan is None  # those of the parameters are
    y.sum().backward()
    torch.testing.assert_close(layer.bias.grad, torch.full((9,), 3.0))
    layer.requires_grad_(False)
    torch.testing.assert_close(run(x), by_definition(layer, x))
    assert layer._plan is not None
    x.requires_grad_()
    (got,) = torch.autograd.grad(run(x).sum(), x)
    torch.testing.assert_close(got, layer.matrix().to_dense().sum(0).expand(3, 12))


@torch.no_grad()
def test_copies_have_plans_of_their_own():
    layer, x = StructuredLinear(12, 9).eval(), torch.randn(3, 12)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other._number != layer._number
        other.G.mul_(3)
        model = nn.Sequential(layer, nn.Linear(9, 12), other).eval()
        torch.testing.assert_close(compiled(model)(x), model(x))


@every_layer
@torch.no_grad()
def test_under_vmap(kind, plans):
    make, shape = LAYERS[kind]
    layer, x = make().eval(), torch.randn(2, *shape)
    each = [tree_leaves(layer(one)) for one in x]
    found = tree_leaves(compiled(torch.vmap(layer))(x))
    assert_close(found, [torch.stack(parts) for parts in zip(*each, strict=True)])


@pytest.mark.parametrize("kind", ["linear", "gru", "channels"])
@torch.no_grad()
def test_under_autocast(kind):
    make, shape = LAYERS[kind]
    layer, x = make().eval(), torch.randn(shape)
    with torch.autocast("cpu", torch.bfloat16):
        found, wanted = tree_leaves(compiled(layer)(x))[0], tree_leaves(layer(x))[0]
    torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.05)


@torch.no_grad()
def test_a_stack_in_two_places_is_given_back(plans):
    """Other parameters for one call stayed in it."""
    layer = StructuredLSTM(8, 8, num_layers=2, structure="low_rank").eval().requires_grad_(False)
    layer.weight_ih_l1 = layer.weight_ih_l0
    x, own = torch.randn(3, 2, 8), [*layer.parameters()]
    others = {name: 2 * p for name, p in layer.named_parameters()}
    call = lambda x: torch.func.functional_call(layer, others, (x,), tie_weights=False)[0]
    right = call(x)
    torch.testing.assert_close(compiled(call)(x), right)
    assert [id(p) for p in layer.parameters()] == [id(p) for p in own]


@torch.no_grad()
def test_weights_that_are_computed_are_none_of_the_plan(plans):
    layer, x = StructuredLinear(12, 9, structure="toeplitz_like").eval(), torch.randn(3, 12)
    run = compiled(layer)
    run(x)
    prune.l1_unstructured(layer, "G", amount=0.5)
    assert_close(run(x), layer(x))
    layer.G_orig.mul_(2)
    assert_close(run(x), layer(x))


@torch.no_grad()
def test_a_copy_of_a_parametrized_layer_is_a_layer_of_its_own(plans):
    layer, x = StructuredLinear(12, 9, structure="toeplitz_like").eval(), torch.randn(3, 12)
    parametrizations.weight_norm(layer, "G")
    other = copy.deepcopy(layer)
    parametrize.remove_parametrizations(other, "G")
    del layer
    assert_close(compiled(other)(x), by_definition(other, x))
