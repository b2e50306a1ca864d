"""A call changes nothing in a layer: its attributes, its tensors, their memory and their version counters.

Every layer with every class, in every mode that a call can have. Weak references count too, so that no cache
elsewhere finds the layer or its parameters again.
"""

import weakref
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import torchldr
from torchldr import StructuredChannels, StructuredGRU, StructuredLinear, StructuredLSTM
from torchldr.nn.pointwise import StructuredPointwise

LAYERS = {
    "linear": lambda **more: StructuredLinear(6, 5, **more),
    "lstm": lambda **more: StructuredLSTM(4, 3, which="both", **more),
    "gru": lambda **more: StructuredGRU(4, 3, **more),
    "grid": lambda **more: StructuredChannels(2, 2, (2, 3), (2, 2), **more),
    "wide": lambda **more: StructuredChannels(2, 2, (2, 3), (2, 2), form="wide", **more),
    "pointwise": lambda **more: StructuredPointwise(StructuredLinear(4, 3, **more)),
}
# Controls. nn.LSTM is none: functional_call changes its references to its weights.
TORCH = {"linear": lambda: nn.Linear(6, 5), "pointwise": lambda: nn.Conv2d(4, 3, 1)}
# torch's own recurrence has no forward mode and no rule for vmap.
LACKS = dict.fromkeys(("lstm", "gru"), ("func.jvp", "vmap"))
SHAPES = {"linear": (3, 6), "grid": (2, 2, 2, 3), "wide": (2, 2, 2, 3), "pointwise": (2, 4, 5, 5)}
SHAPES |= dict.fromkeys(("lstm", "gru"), (2, 2, 4))
MARKS = {
    "_is_torch_compile",
    "_dynamo_static_input_type",
}  # torch.compile leaves them on a module, on a tensor
PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


def result(output) -> Tensor:
    return output if isinstance(output, Tensor) else result(output[0])


def backward(layer, x):
    result(layer(x.requires_grad_())).square().sum().backward()


def with_others(layer, x):
    functional_call(layer, {name: 2 * p.detach() for name, p in layer.named_parameters()}, (x,))


def within(context, call=nn.Module.__call__):
    def run(layer, x):
        with context():
            call(layer, x)

    return run


def compiled(layer, x):
    torch.compiler.reset()
    torch.compile(layer, backend="eager")(x)


MODES = {
    "a plain call": nn.Module.__call__,
    "no_grad": within(torch.no_grad),
    "inference_mode": within(torch.inference_mode),
    "autocast": within(lambda: torch.autocast("cpu", torch.bfloat16)),
    "backward": backward,
    "functional_call": with_others,
    "func.grad": lambda layer, x: torch.func.grad(lambda x: result(layer(x)).sum())(x),
    "func.jvp": lambda layer, x: torch.func.jvp(lambda x: result(layer(x)), (x,), (x,)),
    "vmap": lambda layer, x: torch.vmap(lambda x: result(layer(x)), randomness="same")(torch.stack((x, x))),
}
COMPILED = {"compile": compiled, "compile, no_grad": within(torch.no_grad, compiled)}


def state(value, seen=frozenset()):
    """What a value is, as deep as Python's containers and our own objects go."""
    if isinstance(value, Tensor):
        memory = (value.data_ptr(), value._version, value.shape, value.stride(), value.requires_grad)
        return id(value), memory, value.detach().flatten().tolist(), state(vars(value), seen)
    if isinstance(value, PLAIN) or id(value) in seen:
        return value if isinstance(value, PLAIN) else id(value)
    seen = seen | {id(value)}
    if isinstance(value, Mapping):
        items = ((key if isinstance(key, PLAIN) else id(key), held) for key, held in value.items())
        return {key: state(held, seen) for key, held in items if key not in MARKS}
    if isinstance(value, list | tuple | set | frozenset):
        return [state(held, seen) for held in value]
    ours = type(value).__module__.startswith("torchldr") or isinstance(value, nn.Module)
    return (id(value), state(vars(value), seen) if ours and hasattr(value, "__dict__") else None)


def references(layer: nn.Module) -> list[int]:
    """How many weak references there are to the layer, its parts and its tensors."""
    held = [*layer.modules(), *layer.parameters(), *layer.buffers()]
    return [weakref.getweakrefcount(one) for one in held]


def assert_nothing_is_kept(layer: nn.Module, kind: str, modes=MODES) -> None:
    for training, learns in ((True, True), (True, False), (False, True), (False, False)):
        layer.train(training).requires_grad_(learns)
        for mode, call in modes.items():
            # Each compiled mode where it is used: in training, and with constants in evaluation.
            if modes is COMPILED and not training == learns == (mode == "compile"):
                continue
            if mode in LACKS.get(kind, ()):
                continue
            x = torch.randn(SHAPES[kind])
            before, counted = state(layer), references(layer)
            for _ in range(2):  # the second may be remembered from the first
                call(layer, x)
            where = f"{type(layer).__name__}, {training=}, {learns=}: {mode}"
            assert_same(before, state(layer), where)
            if modes is MODES:  # a compiled program knows the layer by weak references
                more = [now > then for now, then in zip(references(layer), counted, strict=True)]
                assert not any(more), f"{where} adds weak references"
            layer.zero_grad()


def assert_same(before, after, where: str) -> None:
    if isinstance(before, dict) and isinstance(after, dict):
        assert before.keys() == after.keys(), f"{where}: other keys"
        for key in before:
            assert_same(before[key], after[key], f"{where}, {key}")
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple) and len(before) == len(after):
        for one, other in zip(before, after, strict=True):
            assert_same(one, other, where)
    else:
        assert before == after or before is after or before != before, where  # NaN is itself


def made(kind: str, name: str) -> nn.Module:
    return LAYERS[kind](structure=name, rank=2 if torchldr.get_structure(name).ranked else None)


@pytest.mark.parametrize("kind", TORCH)
@pytest.mark.parametrize("modes", [MODES, COMPILED], ids=["eager", "compiled"])
def test_layers_of_torch(kind, modes):
    """The control: what these keep may be kept."""
    assert_nothing_is_kept(TORCH[kind](), kind, modes)


@pytest.mark.parametrize("name", torchldr.structures())
@pytest.mark.parametrize("kind", LAYERS)
def test_a_call_changes_nothing(kind, name):
    assert_nothing_is_kept(made(kind, name), kind)


def compiled_cases():
    """Every kind of layer, and every kind of class: learned operators, fixed ones, drawn constants."""
    for kind in LAYERS:
        for name in torchldr.structures():
            in_suite = name == "ldr_sd" or (kind == "linear" and name in ("toeplitz_like", "fastfood"))
            yield pytest.param(kind, name, marks=[] if in_suite else [pytest.mark.exhaustive])


@pytest.mark.parametrize(("kind", "name"), list(compiled_cases()))
def test_a_compiled_call_changes_nothing(kind, name):
    assert_nothing_is_kept(made(kind, name), kind, COMPILED)


class Counts(nn.Linear):
    """Keeps something, one way or another."""

    def __init__(self, how: str) -> None:
        super().__init__(6, 5)
        self.how, self.kept = how, {}

    def forward(self, x):
        if self.how == "an attribute":
            self.calls = x.shape[0]
        elif self.how == "an entry":
            self.kept[x.shape] = True
        elif self.how == "a version":
            self.bias.data.add_(0) if torch.is_inference_mode_enabled() else self.bias.detach().add_(0)
        elif self.how == "on a parameter":
            self.weight.note = x.shape[0]
        else:
            CACHE[self] = x.shape[0]
        return super().forward(x)


CACHE: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


@pytest.mark.parametrize(
    "how", ["an attribute", "an entry", "a version", "on a parameter", "a cache elsewhere"]
)
def test_what_is_kept_is_noticed(how):
    with pytest.raises(AssertionError, match="Counts"):
        assert_nothing_is_kept(Counts(how), "linear")
