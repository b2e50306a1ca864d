"""The layout of gradients: contiguous or channels last, each in memory of its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import torchldr
from torchldr import StructuredChannels, StructuredGRU, StructuredLinear, StructuredLSTM

CLASSES = list(torchldr.structures().values())
every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)


def arguments(cls):
    return {"structure": cls, "rank": 2 if cls.ranked else None}


def check(layer: nn.Module, x: Tensor) -> None:
    """Gradients by `autograd.grad` and by `backward`."""
    leaves = {"x": x.requires_grad_(), **dict(layer.named_parameters())}
    y = layer(x)
    y = y[0] if isinstance(y, tuple) else y
    loss = (y * torch.randn_like(y)).sum()
    found = torch.autograd.grad(loss, list(leaves.values()), retain_graph=True)
    loss.backward()
    for grads in (found, [t.grad for t in leaves.values()]):
        memory = set()
        for (name, t), g in zip(leaves.items(), grads, strict=True):
            assert g.stride() == t.stride(), name
            assert g.untyped_storage().nbytes() == g.numel() * g.element_size(), name
            memory.add(g.untyped_storage().data_ptr())
        assert len(memory) == len(leaves)


@every_class
@pytest.mark.parametrize("product", ["fast", "dense"])
@pytest.mark.parametrize("shape", [(64, 64), (32, 64)])
@pytest.mark.parametrize("batch", [1, 5])
def test_linear(cls, product, shape, batch):
    layer = StructuredLinear(*shape, **arguments(cls))
    layer.product = product
    check(layer, torch.randn(batch, shape[0]))


@every_class
@pytest.mark.parametrize("form", ["grid", "wide"])
@pytest.mark.parametrize("product", ["fast", "dense"])
def test_channels(cls, form, product):
    """Channels last too: the layer's parameters stay in order, those of five axes were an error."""
    layer = StructuredChannels(3, 4, (4, 4), form=form, **arguments(cls))
    layer.product = product
    check(layer, torch.randn(2, 3, 4, 4))
    x = torch.randn(2, 3, 4, 4)
    y = layer(x)
    check(layer, x.contiguous(memory_format=torch.channels_last))
    model = nn.Sequential(layer, nn.Conv2d(4, 2, 1)).to(memory_format=torch.channels_last)
    assert model[1].weight.is_contiguous(memory_format=torch.channels_last)
    assert all(p.is_contiguous() for p in layer.parameters())
    torch.testing.assert_close(layer(x), y)


@every_class
@pytest.mark.parametrize("kind", [StructuredLSTM, StructuredGRU])
def test_recurrent(cls, kind):
    for product in ("fast", "dense"):
        layer = kind(16, 16, which="both", batch_first=product == "fast", **arguments(cls))
        layer.product = product
        check(layer, torch.randn(3, 2, 16))


@every_class
def test_gradients_of_the_dense_weight(cls):
    layer = StructuredLinear(16, 16, **arguments(cls))
    learned = [p for name, p in layer.named_parameters() if name != "bias"]
    for g in torch.autograd.grad(layer.weight.square().sum(), learned):
        assert g.is_contiguous()
        assert g.untyped_storage().nbytes() == g.numel() * g.element_size()
