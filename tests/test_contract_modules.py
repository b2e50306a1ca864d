"""What torch's own tests ask of every module, asked of every layer with every class.

Forward, factory keywords, devices without memory, copies, hooks, formats of memory, first and second
derivatives.
"""

import copy
import io
import pickle

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


@every_case
def test_factory_arguments(kind, name):
    for dtype in (torch.float32, torch.float64):
        for device in ("cpu", "meta"):
            with torch.device("meta" if device == "cpu" else "cpu"):  # which the argument overrules
                layer = made(kind, name, dtype=dtype, device=device)
            for t in [*layer.parameters(), *layer.buffers()]:
                assert t.device.type == device
                assert t.dtype == dtype or not t.is_floating_point()
    assert {p.dtype for p in made(kind, name, dtype=None).parameters()} == {torch.get_default_dtype()}


@every_case
def test_copies(kind, name):
    """pickle, torch.save, deepcopy and the state_dict give the same numbers, in memory of their own."""
    layer, x, file = made(kind, name), given(kind), io.BytesIO()
    torch.save({"layer": layer, "state": layer.state_dict()}, file)
    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    other = made(kind, name)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(1)
    other.load_state_dict(saved["state"], strict=True)
    own = {p.data_ptr() for p in layer.parameters()}
    for one in (other, saved["layer"], copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert repr(one) == repr(layer)
        assert list(one.state_dict()) == list(layer.state_dict())
        for a, b in zip(tensors(one(x)), tensors(layer(x)), strict=True):
            assert torch.equal(a, b)
        assert not own & {p.data_ptr() for p in one.parameters()}


def spread(t: Tensor) -> Tensor:
    """The same numbers, with others between them."""
    return torch.stack((t, -t), -1)[..., 0]


@every_case
def test_not_contiguous(kind, name):
    """Inputs, incoming gradients and parameters whose numbers have others between them."""
    layer, x = made(kind, name), given(kind)

    def results(x: Tensor, change) -> list[Tensor]:
        outputs, inputs = tensors(layer(x.requires_grad_())), [x, *layer.parameters()]
        incoming = [change(y.detach().cos()) for y in outputs]
        return [*outputs, *torch.autograd.grad(outputs, inputs, incoming)]

    wanted = results(x, lambda t: t)
    apart = spread(x.detach())
    assert_same(results(apart, spread), wanted)
    for p in layer.parameters():
        p.data = spread(p.data)
    assert_same(results(apart, spread), wanted)


@every_case
def test_gradients_are_contiguous(kind, name):
    """Each has memory of its own, so that `view(-1)` works and none keeps another alive."""
    found = gradients(made(kind, name), given(kind).requires_grad_())
    assert all(g.is_contiguous() for g in found)
    assert len({g.untyped_storage().data_ptr() for g in found}) == len(found)


@every_case
def test_hooks(kind, name):
    layer, x, seen = made(kind, name), given(kind).requires_grad_(), []
    handles = [
        layer.register_forward_pre_hook(lambda layer, args: seen.append("before")),
        layer.register_forward_hook(lambda layer, args, output: seen.append("after")),
        layer.register_full_backward_pre_hook(lambda layer, grads: seen.append("back")),
        layer.register_full_backward_hook(lambda layer, inward, outward: seen.append(inward[0].shape)),
    ]
    for called in (["before", "after", "back", x.shape], []):
        gradients(layer, x)
        assert seen == called
        seen.clear()
        for handle in handles:
            handle.remove()


# `testing.contract` holds the linear layer of every class to differences.
@pytest.mark.parametrize("name", ["ldr_sd", "fastfood"])
@pytest.mark.parametrize("kind", [kind for kind in LAYERS if kind != "linear"])
def test_gradients_by_differences(kind, name):
    """First and second derivatives, in the input and in all parameters."""
    layer, x = made(kind, name), given(kind).requires_grad_()
    product = lambda *_: tuple(tensors(layer(x)))
    every = [x, *layer.parameters()]
    assert torch.autograd.gradcheck(product, every, fast_mode=True)
    assert torch.autograd.gradgradcheck(product, every, fast_mode=True)


@pytest.mark.parametrize(("kind", "name"), [case for case in CASES if case[0] in ("grid", "wide")])
@pytest.mark.parametrize("whole", [False, True], ids=["input", "module"])
def test_channels_last(kind, name, whole):
    """An input's format is that of its gradient; a module may be converted as a whole."""
    last = {"memory_format": torch.channels_last}
    layer, x = made(kind, name), given(kind).requires_grad_()
    wanted = [layer(x), *gradients(layer, x)]
    layer = layer.to(**last) if whole else layer
    x = x.detach().to(**last).requires_grad_()
    found = [layer(x), *gradients(layer, x)]
    assert_same(found, wanted)
    assert all(t.is_contiguous(**last) for t in found[:2])
