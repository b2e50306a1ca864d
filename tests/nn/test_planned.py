"""Plans under torch.compile: what eager inference keeps, and never stale."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from torchldr import StructuredLinear


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


@torch.no_grad()
def test_other_parameters_for_one_call_do_not_meet_the_plan():
    layer, x, other = StructuredLinear(12, 9).eval(), torch.randn(3, 12), {"G": torch.randn(1, 9)}
    run = compiled(lambda parameters, x: torch.func.functional_call(layer, parameters, (x,)))
    run({}, x)
    kept = layer._plan
    wanted = torch.func.functional_call(copy.deepcopy(layer), other, (x,))
    torch.testing.assert_close(run(other, x), wanted)
    assert layer._plan is kept


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


@torch.no_grad()
def test_under_vmap():
    layer, x = StructuredLinear(12, 9).eval(), torch.randn(4, 3, 12)
    torch.testing.assert_close(compiled(torch.vmap(layer))(x), layer(x))
