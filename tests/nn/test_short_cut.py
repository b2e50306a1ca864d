"""The call that skips nn.Module's for repeated inference must not be told from it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchldr import StructuredLinear


@pytest.fixture(params=["fast", "dense"])
def layer(request):
    layer = StructuredLinear(12, 9, rank=2).eval()
    layer.plan = request.param
    with torch.no_grad():
        for _ in range(2):
            layer(torch.randn(3, 12))
    assert layer._plan.ways  # or these tests would test nothing
    return layer


def by_definition(layer, x):
    return x @ layer.matrix().to_dense().mT + layer.bias


def check(layer, x):
    with torch.no_grad():
        torch.testing.assert_close(layer(x), by_definition(layer, x), rtol=1e-4, atol=1e-5)


def test_values_of_every_shape(layer):
    for shape in ((3, 12), (12,), (2, 3, 12), (0, 12), (3, 12)):
        check(layer, torch.randn(shape))


def test_an_edit_is_seen(layer):
    x = torch.randn(3, 12)
    with torch.no_grad():
        layer.G.mul_(2)
    check(layer, x)
    layer.H = nn.Parameter(torch.randn_like(layer.H))
    check(layer, x)
    with torch.no_grad():
        layer.bias.add_(1)
    check(layer, x)


def test_other_parameters_for_one_call(layer):
    x, other = torch.randn(3, 12), {"G": torch.randn(2, 9)}
    with torch.no_grad():
        y = torch.func.functional_call(layer, other, (x,))
    assert not torch.allclose(y, layer(x))
    check(layer, x)


def test_hooks_are_called(layer):
    x, seen = torch.randn(3, 12), []
    with torch.no_grad():
        handles = [
            layer.register_forward_pre_hook(lambda *_: seen.append("before")),
            layer.register_forward_hook(lambda *_: seen.append("after")),
            nn.modules.module.register_module_forward_hook(lambda *_: seen.append("global")),
        ]
        layer(x)
        assert seen == ["before", "global", "after"]
        for handle in handles:
            handle.remove()
        layer(x)
    assert len(seen) == 3


def test_gradients_when_they_are_wanted(layer):
    x = torch.randn(3, 12, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
    assert layer.G.grad is not None


def test_gradient_of_the_input_alone(layer):
    x = torch.randn(3, 12)
    layer.requires_grad_(False)
    for _ in range(2):
        leaf = x.clone().requires_grad_()
        layer(leaf).square().sum().backward()
        wanted = x.clone().requires_grad_()
        by_definition(layer, wanted).square().sum().backward()
        torch.testing.assert_close(leaf.grad, wanted.grad, rtol=1e-3, atol=1e-4)


def test_errors_and_conversions_are_the_same(layer):
    with torch.no_grad():
        with pytest.raises(ValueError, match="in_features"):
            layer(torch.randn(3, 11))
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(torch.randn(3, 12)).dtype == torch.bfloat16
        assert layer(x=torch.randn(3, 12)).shape == (3, 9)
        with pytest.raises(TypeError):
            layer(torch.randn(3, 12), 1)


def test_train_mode_leaves_the_plan(layer):
    layer.train()
    y = layer(torch.randn(3, 12))
    assert y.requires_grad


def test_vmap_and_compile(layer):
    x = torch.randn(4, 3, 12)
    with torch.no_grad():
        torch.testing.assert_close(torch.vmap(layer)(x), layer(x), rtol=1e-4, atol=1e-5)
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x[0]), layer(x[0]), rtol=1e-4, atol=1e-5)
