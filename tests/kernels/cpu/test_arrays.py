"""Arrays over the memory of tensors leave the tensors as they were."""

import numpy as np
import pytest
import torch

import torchldr
from torchldr.kernels.cpu.arrays import as_array


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (0, 4), (2, 3, 4)])
def test_the_same_numbers(dtype, shape):
    t = torch.randn(shape, dtype=dtype, requires_grad=True)
    for view in (t, t.mT if t.ndim > 1 else t, t[..., ::2] if t.ndim else t, torch._neg_view(t)):
        array = as_array(view)
        assert array.shape == tuple(view.shape)
        assert np.array_equal(array, view.detach().clone().numpy())


def test_the_array_keeps_the_memory():
    array = as_array(torch.arange(1000.0) + 1)
    torch.zeros(1000)  # would come to the same place
    assert array.sum() == 500500


@pytest.mark.parametrize("name", torchldr.structures())
@pytest.mark.parametrize("plan", ["fast", "dense"])
def test_products_leave_storages_that_can_be_resized(name, plan):
    """FSDP frees parameters by resizing their storages to nothing."""
    rank = 2 if torchldr.get_structure(name).ranked else None
    layer = torchldr.StructuredLinear(64, 64, structure=name, rank=rank)
    layer.plan = plan
    x = torch.randn(3, 64, requires_grad=True)
    layer(x).square().sum().backward()
    layer.eval()
    with torch.no_grad():
        layer(x)
        layer(x[:1])
    for t in (x, *layer.parameters()):
        t.data.untyped_storage().resize_(0)
