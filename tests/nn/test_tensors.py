"""Layers that are built, loaded, copied or moved under inference mode, and calls with other tensors."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call

from torchldr import StructuredLinear

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


def exact(layer, x):
    return x.double() @ layer.matrix().double().to_dense().mT + layer.bias.double()


def check(layer, x):
    torch.testing.assert_close(layer(x).double(), exact(layer, x), rtol=1e-4, atol=1e-4)


@every_way
@pytest.mark.parametrize("structure", STRUCTURES)
def test_it_gives_the_same_numbers_follows_edits_and_trains(way, structure):
    outside, x = made(structure), torch.randn(3, N)
    with torch.inference_mode():
        inside = WAYS[way](outside)
        assert torch.equal(inside(x), outside(x))
        next(inside.parameters()).add_(0.5)
        check(inside, x)
        assert not torch.equal(inside(x), outside(x))
    with torch.no_grad():
        check(inside, x)
    fresh = inside.train()
    if not any(p.is_inference() for p in fresh.parameters()):
        fresh(x).square().sum().backward()
        assert all(p.grad is not None for p in fresh.parameters())


def test_tied_parameters_and_their_attributes_stay():
    with torch.inference_mode():
        model = nn.Sequential(made(), made())
        model[0].G = model[1].G = tied = nn.Parameter(model[0].G.clone())
        tied.note = "kept"
        model.to("cpu")
        assert model[0].G is model[1].G is tied
        assert tied.note == "kept"
        copied = copy.deepcopy(model)
        assert copied[1].G is copied[0].G


# Inputs in other memory, by both products.

ROWS = 6
INPUTS = {
    "columns of a wider one": lambda: torch.randn(ROWS, 2 * N)[:, :N],
    "every second entry": lambda: torch.randn(ROWS, 2 * N)[:, ::2],
    "every second row": lambda: torch.randn(2 * ROWS, N)[::2],
    "transposed": lambda: torch.randn(N, ROWS).mT,
    "expanded": lambda: torch.randn(1, N).expand(ROWS, N),
    "one number": lambda: torch.randn(1, 1).expand(ROWS, N),
    "axes exchanged": lambda: torch.randn(3, 2, N).transpose(0, 1),
    "channels last": lambda: torch.randn(2, 3, 1, N).to(memory_format=torch.channels_last),
    "channels in front": lambda: torch.randn(2, N, 3, 1).permute(0, 2, 3, 1),
    "conjugate bit": lambda: torch.randn(ROWS, N, dtype=torch.complex64).conj().real,
    "negative bit": lambda: torch.randn(ROWS, N, dtype=torch.complex64).conj().imag,
    "shared with numpy": lambda: torch.from_numpy(torch.randn(ROWS, N).numpy()),
}
both_products = pytest.mark.parametrize("product", ["fast", "dense"])


@both_products
@pytest.mark.parametrize("structure", STRUCTURES)
def test_inputs_in_any_memory(structure, product):
    layer = made(structure)
    layer.product = product
    for name, draw in INPUTS.items():
        x = draw()
        torch.testing.assert_close(layer(x).double(), exact(layer, x), rtol=1e-4, atol=1e-4, msg=name)


@both_products
@pytest.mark.parametrize("structure", STRUCTURES)
def test_edits_between_forward_and_backward_do_not_reach_the_gradient(structure, product):
    """The gradient of the old numbers, or torch's error."""
    layer, (x, u) = made(structure), torch.randn(2, 1, N)
    layer.product = product
    x.requires_grad_()
    right = u.double() @ layer.matrix().double().to_dense()
    y = layer(x)
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(2)
    try:
        (found,) = torch.autograd.grad(y, x, u)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return
    torch.testing.assert_close(found.double(), right.detach(), rtol=1e-4, atol=1e-4)


@both_products
@pytest.mark.parametrize("structure", STRUCTURES)
def test_replicas_of_data_parallel(structure, product):
    layer, x = made(structure), torch.randn(ROWS, N)
    layer.product = product
    replica = layer._replicate_for_data_parallel()
    for name, p in layer.named_parameters():
        setattr(replica, name, p.detach().clone())  # as torch.nn.parallel.replicate does
    replica._buffers = dict(layer._buffers)
    torch.testing.assert_close(replica(x).double(), exact(layer, x), rtol=1e-4, atol=1e-4)
    check(nn.DataParallel(layer).module, x)


class Named(nn.Parameter):
    """A parameter with attributes of its own, as loaders make them."""


class Watching(nn.Parameter):
    """A parameter that sees the operations it takes part in."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


@both_products
@pytest.mark.parametrize("kind", [Named, Watching])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_parameters_of_other_classes(structure, kind, product):
    layer, x = made(structure), torch.randn(ROWS, N)
    layer.product = product
    for name, p in list(layer.named_parameters()):
        setattr(layer, name, kind(p.detach(), requires_grad=False))
    check(layer, x)


@both_products
@pytest.mark.parametrize("structure", STRUCTURES)
def test_functional_calls_and_hooks(structure, product):
    layer, x = made(structure), torch.randn(ROWS, N)
    layer.product = product
    others = {name: 1.05 * p.detach() for name, p in layer.named_parameters()}
    right = made(structure)
    right.load_state_dict({**layer.state_dict(), **others})
    torch.testing.assert_close(
        functional_call(layer, others, (x,)).double(), exact(right, x), rtol=1e-4, atol=1e-4
    )
    layer.register_forward_pre_hook(lambda module, args: (2 * args[0],))
    torch.testing.assert_close(layer(x).double(), exact(layer, 2 * x), rtol=1e-4, atol=1e-4)
