"""Activation checkpointing without re-entrance: the gradients of a plain call, for every layer and class."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchldr

from .test_contract_torch_tools import LAYERS

# Each kind of class that there is: learned operators, shifts, computed constants.
CASES = [(kind, name) for kind in LAYERS for name in ("ldr_sd", "toeplitz_like", "vandermonde_like")]


def made(kind: str, name: str, product: str = "fast") -> nn.Module:
    rank = 2 if torchldr.get_structure(name).ranked else None
    layer = LAYERS[kind](structure=name, rank=rank, dtype=torch.float64)
    layer.product = product
    return layer


def gradients(layer: nn.Module, call, x: Tensor) -> list[Tensor]:
    y = call(x)
    y = y[0] if isinstance(y, tuple) else y
    return list(torch.autograd.grad(y.square().sum(), list(layer.parameters())))


def assert_same(found: list[Tensor], wanted: list[Tensor]) -> None:
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("product", ["fast", "dense"])
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_every_layer(kind, name, product):
    layer, x = made(kind, name, product), torch.randn(5, 3, 12, dtype=torch.float64)
    found = gradients(layer, lambda x: checkpoint(layer, x, use_reentrant=False), x)
    assert_same(found, gradients(layer, layer, x))


@pytest.mark.parametrize("name", ["ldr_sd", "ldr_td"])
@pytest.mark.parametrize("inside", [True, False])
def test_with_a_compiler(name, inside):
    torch.compiler.reset()
    layer, x = made("linear", name), torch.randn(5, 12, dtype=torch.float64)
    compiled = {"backend": "aot_eager", "fullgraph": True}
    if inside:
        call = torch.compile(lambda x: checkpoint(layer, x, use_reentrant=False), **compiled)
    else:
        inner = torch.compile(layer, **compiled)
        call = lambda x: checkpoint(inner, x, use_reentrant=False)
    assert_same(gradients(layer, call, x), gradients(layer, layer, x))


@pytest.mark.parametrize("product", ["fast", "dense"])
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_hooks_that_give_tensors_back_in_another_layout(kind, name, product):
    layer, x = made(kind, name, product), torch.randn(5, 3, 12, dtype=torch.float64)
    wanted = gradients(layer, layer, x)
    spread = lambda t: t.repeat_interleave(2, -1)[..., ::2] if t.ndim else t
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, spread):
        assert_same(gradients(layer, layer, x), wanted)
