"""What torch's own tests ask of every module, asked of every layer with every class.

Forward, factory keywords, devices without memory, copies, formats of memory, first and second derivatives,
also batched ones.
"""

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import torchldr
from torchldr import StructuredChannels, StructuredGRU, StructuredLinear, StructuredLSTM

LAYERS = {
    "linear": lambda **more: StructuredLinear(6, 5, **more),
    "lstm": lambda **more: StructuredLSTM(4, 3, **more),
    "gru": lambda **more: StructuredGRU(4, 3, which="both", **more),
    "grid": lambda **more: StructuredChannels(2, 2, (2, 3), (2, 2), **more),
    "wide": lambda **more: StructuredChannels(2, 2, (2, 3), (2, 2), form="wide", **more),
}
SHAPES = {"linear": (3, 6), "lstm": (2, 2, 4), "gru": (2, 2, 4), "grid": (2, 2, 2, 3), "wide": (2, 2, 2, 3)}
# Every class as a linear layer; layers that are stacks of matrices with each kind of class that there is:
# learned operators, drawn constants, computed constants.
OTHERS = ("ldr_sd", "ldr_td", "fastfood", "cauchy_like")
CASES = [(k, name) for k in LAYERS for name in torchldr.structures() if k == "linear" or name in OTHERS]
every_case = pytest.mark.parametrize(("kind", "name"), CASES)
modes = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


def made(kind: str, name: str, **more) -> nn.Module:
    rank = 2 if torchldr.get_structure(name).ranked else None
    return LAYERS[kind](structure=name, rank=rank, **{"dtype": torch.float64, **more})


def given(kind: str, **more) -> Tensor:
    x = torch.randn(SHAPES[kind], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x.to(**more)


def tensors(output) -> list[Tensor]:
    return [output] if isinstance(output, Tensor) else [t for part in output for t in tensors(part)]


def gradients(layer: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    value = sum(t.square().sum() for t in tensors(layer(x)))
    return torch.autograd.grad(value, [x, *layer.parameters()])


def assert_same(one, other) -> None:
    for a, b in zip(tensors(one), tensors(other), strict=True):
        torch.testing.assert_close(a, b)


@every_case
@modes
def test_forward_is_that_of_the_dense_weights(kind, name, training):
    layer, x = made(kind, name).train(training), given(kind)
    if kind in ("lstm", "gru"):
        wanted = layer.to_torch()(x)
    elif kind == "linear":
        wanted = x @ layer.weight.mT + layer.bias
    else:
        wanted = (x.flatten(1) @ layer.weight.mT).view(2, 2, 2, 2) + layer.bias[:, None, None]
    assert_same(layer(x), wanted)


@every_case
def test_a_device_without_memory(kind, name):
    with torch.device("meta"):
        layer = made(kind, name)
    assert {t.device.type for t in [*layer.parameters(), *layer.buffers()]} == {"meta"}
    assert repr(layer) == repr(made(kind, name))
    wanted = made(kind, name)(given(kind))
    for a, b in zip(tensors(layer(given(kind, device="meta"))), tensors(wanted), strict=True):
        assert (a.device.type, a.shape, a.dtype) == ("meta", b.shape, b.dtype)


@every_case
def test_tensors_without_values(kind, name):
    with FakeTensorMode():
        y, *_ = tensors(made(kind, name)(torch.randn(SHAPES[kind], dtype=torch.float64)))
    assert y.shape == tensors(made(kind, name)(given(kind)))[0].shape


@every_case
@modes
def test_numbers_for_a_layer_without_memory(kind, name, training):
    layer, x = made(kind, name), given(kind)
    with torch.device("meta"):
        others = [made(kind, name) for _ in range(3)]
    others[0].load_state_dict(layer.state_dict(), assign=True)
    others[1].to_empty(device="cpu").load_state_dict(layer.state_dict())
    others[2].float().load_state_dict(layer.state_dict(), assign=True)
    for other in others:
        other.train(training)
        assert_same(other(x), layer(x))
        with torch.no_grad():
            assert_same(other(x), layer(x))


@every_case
@pytest.mark.parametrize("product", ["fast", "dense"])
def test_an_empty_batch(kind, name, product):
    layer, x = made(kind, name), given(kind)
    layer.product = product
    axis = 1 if kind in ("lstm", "gru") else 0
    empty = x.narrow(axis, 0, 0).requires_grad_()
    y, wanted = tensors(layer(empty))[0], tensors(layer(x))[0]
    assert y.shape == wanted.narrow(axis, 0, 0).shape
    assert torch.autograd.grad(y.sum(), empty)[0].shape == empty.shape
    with torch.no_grad():
        assert_same(layer.eval()(empty), layer.train()(empty))


@every_case
@pytest.mark.parametrize("product", ["fast", "dense"])
def test_format_of_memory(kind, name, product):
    """A result lies in memory as its input does, and keeps no more of it alive than it needs."""
    layer, x = made(kind, name, bias=False), given(kind)
    layer.product = product
    formats = [torch.contiguous_format] + [torch.channels_last] * (x.ndim == 4)
    for form in formats:
        for training in (True, False):
            with torch.set_grad_enabled(training):
                for t in tensors(layer.train(training)(x.contiguous(memory_format=form))):
                    assert t.is_contiguous(memory_format=form)
                    assert t.untyped_storage().nbytes() == t.nbytes


@every_case
def test_the_default_device_does_not_matter(kind, name):
    """A layer that has its device is used while another one is the default."""
    layer, x = made(kind, name), given(kind).requires_grad_()
    wanted = gradients(layer, x)
    with torch.device("meta"):
        found = gradients(layer, x)
        with torch.no_grad():
            y = layer.eval()(x)
    assert_same(found, wanted)
    assert_same(y, layer(x))
