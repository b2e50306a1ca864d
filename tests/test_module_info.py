"""What PyTorch's own module tests ask of a module, over the `ModuleInfo` of nn.Linear, nn.LSTM and nn.GRU.

Each structured layer, with every class, gets the constructor arguments and inputs that PyTorch has for the
dense layer; StructuredChannels has its own. The layers of torch are the controls.
"""

import copy
import io
import pickle
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.testing import assert_close, make_tensor

import torchldr
from torchldr import StructuredChannels, StructuredGRU, StructuredLinear, StructuredLSTM

pytest.importorskip("expecttest", reason="torch.testing._internal needs it")
from torch.testing._internal import common_modules as torchs
from torch.testing._internal.common_modules import FunctionInput, ModuleInfo, ModuleInput

torch.backends.__allow_nonbracketed_mutation_flag = True  # which that import takes from all tests after it

f64 = torch.float64


def channels_inputs(module_info, device, dtype, requires_grad, training, **kwargs):
    make = partial(make_tensor, device=device, dtype=dtype, requires_grad=requires_grad)
    return [
        ModuleInput(FunctionInput(2, 3, (2, 3), (2, 2)), FunctionInput(make((2, 2, 2, 3)))),
        ModuleInput(FunctionInput(2, 3, (2, 3), bias=False, form="wide"), FunctionInput(make((2, 2, 2, 3)))),
        ModuleInput(FunctionInput(2, 1, 4), FunctionInput(make((2, 4)))),
    ]


INPUTS = {
    nn.Linear: torchs.module_inputs_torch_nn_Linear,
    nn.LSTM: torchs.module_inputs_torch_nn_LSTM,
    nn.GRU: partial(torchs.module_inputs_torch_nn_RNN_GRU, is_rnn=False),
}
PLACES = {StructuredLinear: nn.Linear, StructuredLSTM: nn.LSTM, StructuredGRU: nn.GRU}
INPUTS |= {ours: INPUTS[place] for ours, place in PLACES.items()} | {StructuredChannels: channels_inputs}
INFOS = {
    cls: ModuleInfo(cls, module_inputs_func=given, gradcheck_fast_mode=True) for cls, given in INPUTS.items()
}
NAMES = list(torchldr.structures())
CASES = [(cls, None) for cls in PLACES.values()]
CASES += [(cls, name) for cls in (*PLACES, StructuredChannels) for name in NAMES]


def every_module(cases):
    ids = [f"{cls.__name__}-{name}" if name else cls.__name__ for cls, name in cases]
    return pytest.mark.parametrize(("cls", "name"), cases, ids=ids)


each = every_module(CASES)


def samples(cls, name, *, few=False, dtype=f64, device="cpu", **how):
    """(module, inputs): of the many samples of recurrent layers those whose turn it is with this class."""
    how = {"requires_grad": False, "training": True, **how}
    info = INFOS[cls]
    torch.manual_seed(0)
    given = info.module_inputs_func(info, device=device, dtype=dtype, **how)
    turn = NAMES.index(name) if name else 0
    if few or len(given) > 3:
        given = [given[(5 * turn + 3 * i) % len(given)] for i in range(1 if few else 2)]
    for sample in given:
        made, forward = sample.constructor_input, sample.forward_input
        yield build(cls, name, made, dtype=dtype, device=device), (*forward.args, *forward.kwargs.values())


def build(cls, name, given, **factory) -> nn.Module:
    structured = (
        {"structure": name, "rank": 1 if torchldr.get_structure(name).ranked else None} if name else {}
    )
    return cls(*given.args, **given.kwargs, **structured, **factory)


def flat(value) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [t for part in value for t in flat(part)]


def moved(value, change):
    return change(value) if isinstance(value, Tensor) else tuple(moved(part, change) for part in value)


def gradients(module, inputs, change=lambda t: t) -> list[Tensor]:
    """Of a sum over the outputs, in the inputs and the parameters; `change` is for incoming gradients."""
    wanted = [*flat(inputs), *module.parameters()]
    outputs = flat(module(*inputs))
    return list(torch.autograd.grad(outputs, wanted, [change(y.detach().cos()) for y in outputs]))


def leaf(t: Tensor) -> Tensor:
    return t.detach().clone().requires_grad_()


def spread(t: Tensor) -> Tensor:
    """The same numbers, with others between them."""
    return torch.stack((t, -t), -1)[..., 0]


@each
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_forward(cls, name, training):
    """As the layer of torch with the dense weights."""
    for module, inputs in samples(cls, name):
        found, (x, *_) = module.train(training)(*inputs), inputs
        if name is None:
            continue
        if cls is StructuredLinear:
            wanted = linear(x, module.weight, module.bias)
        elif cls is StructuredChannels:
            shape, axes = module.out_features, x.ndim - len(module.features) - 1
            wanted = linear(x.flatten(axes), module.weight).unflatten(-1, (module.out_channels, *shape))
            if module.bias is not None:
                wanted = wanted + module.bias.reshape(-1, *[1] * len(shape))
        else:
            wanted = module.to_torch()(*inputs)
        assert_close(flat(found), flat(wanted))


@each
def test_factory_arguments(cls, name):
    info = INFOS[cls]
    (sample, *_) = info.module_inputs_func(info, device="cpu", dtype=f64, requires_grad=False, training=True)
    given = sample.constructor_input
    for dtype in info.dtypes:
        for device in ("cpu", "meta"):
            with torch.device("meta" if device == "cpu" else "cpu"):  # which the argument overrules
                module = build(cls, name, given, dtype=dtype, device=device)
            for t in [*module.parameters(), *module.buffers()]:
                assert t.device.type == device
                assert t.dtype == dtype or not t.is_floating_point()
    assert {p.dtype for p in build(cls, name, given).parameters()} == {torch.get_default_dtype()}


@each
def test_repr(cls, name):
    for module, _ in samples(cls, name):
        assert repr(module).startswith(f"{cls.__name__}(")
        assert repr(module) == str(module) == repr(copy.deepcopy(module))


@each
def test_copies(cls, name):
    """pickle, torch.save, deepcopy and the state_dict give the same numbers, in memory of their own."""
    for module, inputs in samples(cls, name):
        file, state = io.BytesIO(), io.BytesIO()
        torch.save(module, file)
        torch.save(module.state_dict(), state)
        (other, _) = next((m, x) for m, x in samples(cls, name) if repr(m) == repr(module))
        with torch.no_grad():
            for p in other.parameters():
                p.add_(1)
        other.load_state_dict(torch.load(io.BytesIO(state.getvalue()), weights_only=True), strict=True)
        saved = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
        own = {p.data_ptr() for p in module.parameters()}
        for one in (other, saved, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            assert list(one.state_dict()) == list(module.state_dict())
            assert_close(flat(one(*inputs)), flat(module(*inputs)), rtol=0, atol=0)
            assert not own & {p.data_ptr() for p in one.parameters()}


@each
def test_to(cls, name):
    """Of dtype, and of device by way of one without memory: as if made there."""
    for module, inputs in samples(cls, name):
        wanted = flat(module(*inputs))
        narrow = copy.deepcopy(module).to(torch.float32)
        found = flat(narrow(*moved(inputs, lambda t: t.float())))
        assert {t.dtype for t in found} == {torch.float32}
        assert_close([t.double() for t in found], wanted, rtol=1e-3, atol=1e-3)
        same = module.to(f64)
        assert same is module
        empty = copy.deepcopy(module).to("meta").to_empty(device="cpu")
        empty.load_state_dict(module.state_dict())
        assert_close(flat(empty(*inputs)), wanted)


@each
def test_train_and_eval(cls, name):
    for module, inputs in samples(cls, name):
        wanted = flat(module(*inputs))
        assert all(part.training for part in module.modules())
        assert not any(part.training for part in module.eval().modules())
        for enabled in (True, False, False):
            with torch.set_grad_enabled(enabled):
                assert_close(flat(module(*inputs)), wanted)


@each
def test_not_contiguous(cls, name):
    """Inputs, incoming gradients and parameters whose numbers have others between them."""
    for module, inputs in samples(cls, name):
        inputs = moved(inputs, leaf)
        wanted = flat(module(*inputs)), gradients(module, inputs)
        apart = moved(inputs, lambda t: spread(t.detach()).requires_grad_())
        assert_close((flat(module(*apart)), gradients(module, apart, spread)), wanted)
        if cls in PLACES.values() and cls is not nn.Linear:
            continue  # nn.LSTM refuses such weights
        for p in module.parameters():
            p.data = spread(p.data)
        assert_close((flat(module(*apart)), gradients(module, apart, spread)), wanted)


@each
def test_gradients_are_contiguous(cls, name):
    """Each has memory of its own, so that `view(-1)` works and none keeps another alive."""
    for module, inputs in samples(cls, name):
        found = gradients(module, moved(inputs, leaf))
        assert all(g.is_contiguous() for g in found)
        assert len({g.untyped_storage().data_ptr() for g in found}) == len(found)


@each
def test_hooks(cls, name):
    ((module, inputs),) = samples(cls, name, few=True)
    seen, inputs = [], moved(inputs, leaf)
    handles = [
        module.register_forward_pre_hook(lambda module, args: seen.append("before")),
        module.register_forward_hook(lambda module, args, output: seen.append("after")),
        module.register_full_backward_pre_hook(lambda module, grads: seen.append("back")),
        module.register_full_backward_hook(lambda module, inward, outward: seen.append(inward[0].shape)),
    ]
    for called in (["before", "after", "back", inputs[0].shape], []):
        sum(y.sum() for y in flat(module(*inputs))).backward()
        assert seen == called
        seen.clear()
        for handle in handles:
            handle.remove()


# `testing.contract` holds the linear layer of every class to differences.
DERIVED = [
    (cls, name)
    if cls in PLACES.values() or (cls is not StructuredLinear and name in ("ldr_sd", "fastfood"))
    else pytest.param(cls, name, marks=pytest.mark.exhaustive)
    for cls, name in CASES
]


@pytest.mark.parametrize(("cls", "name"), DERIVED)
def test_gradients_by_differences(cls, name):
    """First and second derivatives, in the inputs and in all parameters."""
    for module, inputs in samples(cls, name, few=cls is not StructuredLinear):
        inputs = moved(inputs, leaf)
        product = lambda *_, module=module, inputs=inputs: tuple(flat(module(*inputs)))
        every, fast = [*flat(inputs), *module.parameters()], INFOS[cls].gradcheck_fast_mode
        assert torch.autograd.gradcheck(product, every, fast_mode=fast)
        assert torch.autograd.gradgradcheck(product, every, fast_mode=fast)


@every_module([(StructuredChannels, name) for name in NAMES])
@pytest.mark.parametrize("whole", [False, True], ids=["input", "module"])
def test_channels_last(cls, name, whole):
    """An input's format is that of the output and of its gradient; a module may be converted as a whole."""
    last = {"memory_format": torch.channels_last}
    for module, (x,) in samples(cls, name):
        if x.ndim != 4:
            continue
        wanted = module(x), gradients(module, (leaf(x),))
        given = x.to(**last).requires_grad_()
        module = module.to(**last) if whole else module
        y, found = module(given), gradients(module, (given,))
        assert_close((y, found), wanted)
        assert y.is_contiguous(**last)
        assert found[0].is_contiguous(**last)


@each
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_same_on_a_gpu(cls, name):
    for module, inputs in samples(cls, name):
        inputs = moved(inputs, leaf)
        wanted = flat(module(*inputs)), gradients(module, inputs)
        there = moved(inputs, lambda t: leaf(t.cuda()))
        module.cuda()
        found = flat(module(*there)), gradients(module, there)
        assert_close(moved(found, Tensor.cpu), moved(wanted, Tensor.cpu))
