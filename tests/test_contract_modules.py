"""What torch's own tests ask of every module, asked of every layer with every class.

Forward, factory keywords, devices without memory, copies, formats of memory, first and second derivatives,
also batched ones.
"""

import pytest
import torch
from torch import Tensor, nn

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
