"""What torch offers around modules, on every layer: functional calls, pruning, parametrizations, vectors."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad
from torch.nn.utils import parametrizations, parametrize, prune

from torchldr import StructuredChannels, StructuredGRU, StructuredLinear, StructuredLSTM

LAYERS = {
    "linear": lambda **more: StructuredLinear(12, 12, **more),
    "lstm": lambda **more: StructuredLSTM(12, 12, **more),
    "gru": lambda **more: StructuredGRU(12, 12, which="both", **more),
    "grid": lambda **more: StructuredChannels(3, 3, 12, **more),
    "wide": lambda **more: StructuredChannels(3, 3, 12, form="wide", **more),
}
every_product = pytest.mark.parametrize("product", ["fast", "dense"])
every_layer = pytest.mark.parametrize("name", LAYERS)


def made(name: str, product: str = "auto", structure: str = "ldr_sd", rank: int | None = 2) -> nn.Module:
    torch.manual_seed(0)
    layer = LAYERS[name](structure=structure, rank=rank, dtype=torch.float64)
    layer.product = product
    return layer


def output(layer: nn.Module, parameters: dict[str, torch.Tensor] | None = None) -> torch.Tensor:
    x = torch.randn(5, 3, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = layer(x) if parameters is None else functional_call(layer, parameters, (x,))
    return y[0] if isinstance(y, tuple) else y


def holder(layer: nn.Module) -> nn.Module:
    """The module that has G."""
    return next(module for module in layer.modules() if "G" in module._parameters)


@every_layer
@every_product
def test_functional_calls_take_other_parameters(name, product):
    layer = made(name, product)
    others = {k: 1.5 * p.detach() for k, p in layer.named_parameters()}
    moved = copy.deepcopy(layer)
    with torch.no_grad():
        for p in moved.parameters():
            p.mul_(1.5)
    torch.testing.assert_close(output(layer, others), output(moved))
    layer.eval()
    with torch.no_grad():
        y = output(layer)
        torch.testing.assert_close(output(layer, others), output(moved))
        torch.testing.assert_close(output(layer), y)


@every_layer
@every_product
def test_gradients_of_a_functional_call(name, product):
    layer = made(name, product)
    output(layer).square().sum().backward()
    own = {k: p.detach() for k, p in layer.named_parameters()}
    found = grad(lambda parameters: output(layer, parameters).square().sum())(own)
    for k, p in layer.named_parameters():
        torch.testing.assert_close(found[k], p.grad)


@every_layer
def test_functional_calls_of_the_dense_class(name):
    layer = made(name, structure="dense", rank=None)
    own = {k: p.detach() for k, p in layer.named_parameters()}
    torch.testing.assert_close(output(layer, own), output(layer))


@every_layer
@every_product
def test_pruned_parameters(name, product):
    layer = made(name, product)
    plain, part = copy.deepcopy(layer), holder(layer)
    prune.l1_unstructured(part, "G", 0.5)
    with torch.no_grad():
        holder(plain).G.mul_(part.G_mask)
    for _ in range(2):
        torch.testing.assert_close(output(layer), output(plain))
        output(layer).sum().backward()
        with torch.no_grad():  # a step of descent
            part.G_orig.sub_(part.G_orig.grad)
            holder(plain).G.copy_(part.G_orig * part.G_mask)
        part.G_orig.grad = None
    with torch.no_grad():
        torch.testing.assert_close(output(layer.eval()), output(plain))


@every_layer
@every_product
def test_parametrized_parameters(name, product):
    layer = made(name, product)
    y, part = output(layer).detach(), holder(layer)
    parametrizations.weight_norm(part, "G")
    torch.testing.assert_close(output(layer), y)
    with torch.no_grad():
        layer.eval()
        output(layer)
        part.parametrizations.G.original0.mul_(2)
        assert not torch.allclose(output(layer), y)
        torch.testing.assert_close(output(copy.deepcopy(layer)), output(layer))


@every_layer
@pytest.mark.parametrize("tool", ["prune", "weight norm", "spectral norm"])
def test_the_weight_of_the_dense_class(name, tool):
    """A parameter like any other, also where `weight` is a property for all other classes."""
    layer = made(name, structure="dense", rank=None)
    y, part = output(layer).detach(), next(m for m in layer.modules() if hasattr(m, "_learned"))
    if tool == "prune":
        prune.l1_unstructured(part, "weight", 0.5)
        pruned = output(layer)
        assert not torch.allclose(pruned, y)
        assert (part.weight == 0).sum() == part.weight.numel() // 2
        pruned.sum().backward()
        assert part.weight_orig.grad is not None
        prune.remove(part, "weight")
        torch.testing.assert_close(output(layer), pruned)
    else:
        (parametrizations.weight_norm if tool == "weight norm" else parametrizations.spectral_norm)(
            part, "weight"
        )
        changed = output(layer.eval())
        assert torch.allclose(changed, y) == (tool == "weight norm")
        parametrize.remove_parametrizations(part, "weight")
        torch.testing.assert_close(output(layer), changed)
    assert "weight" in part._parameters


def test_a_weight_that_is_computed_cannot_be_set():
    layer = made("linear")
    with pytest.raises(AttributeError, match="computed from G, H, subdiagonal_A"):
        layer.weight = torch.zeros(12, 12)
    with pytest.raises(AttributeError, match="no weight to delete"):
        del layer.weight
    with pytest.raises(AttributeError, match="computed from G, H, subdiagonal_A"):
        layer.weight = nn.Parameter(torch.zeros(12, 12))


@every_layer
def test_pruned_layers_that_move(name):
    layer = made(name).float()
    prune.l1_unstructured(holder(layer), "G", 0.5)
    layer.double()
    assert output(layer).dtype == torch.float64


@every_product
def test_a_pruned_bias(product):
    layer = made("linear", product).eval()
    prune.l1_unstructured(layer, "bias", 0.5)
    x = torch.zeros(1, 12, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(layer(x)[0], layer.bias_orig * layer.bias_mask)


def test_a_map_over_biases():
    layer = made("linear").eval().requires_grad_(False)
    x, biases = (torch.randn(n, 12, dtype=torch.float64) for n in (3, 5))
    y = torch.vmap(lambda bias: functional_call(layer, {"bias": bias}, (x,)))(biases)
    torch.testing.assert_close(y, layer(x) - layer.bias + biases.unsqueeze(1))


def test_a_step_of_a_pruned_layer():
    layer = made("lstm")
    prune.l1_unstructured(layer, "weight_hh_l0", 0.5)
    step, x = layer.step(), torch.randn(3, 12, dtype=torch.float64)
    for _ in range(2):
        _, state = step(x)
        y, _ = step(x, state)
        torch.testing.assert_close(y, layer(x[None], state)[0][0])
        torch.testing.assert_close(y, layer.to_torch()(x[None], state)[0][0])
        y.sum().backward()
        with torch.no_grad():
            layer.weight_hh_l0_orig.mul_(3)


@every_layer
def test_hooks_of_others_are_left_alone(name):
    """Such as a profiler's on all modules: ours run when a module is called, as torch has it."""
    layer, seen = made(name), []
    for module in layer.modules():
        module.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0].shape))
    output(layer)
    assert seen
