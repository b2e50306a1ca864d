"""The dense route: where the bias is added."""

import pytest
import torch

from torchldr import StructuredLinear
from torchldr.core import dense_route
from torchldr.nn import plan


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("shape", [(5, 16), (1, 16), (0, 16), (2, 3, 16), (16,)])
def test_a_bias_that_is_added_apart_is_added_once(monkeypatch, apart, shape):
    """On a GPU it is the faster way in float32; here the question alone is answered."""
    for module in (dense_route, plan):
        monkeypatch.setattr(module, "adds_apart", lambda x: apart)
    layer = StructuredLinear(16, 16, structure="toeplitz_like", rank=2)
    layer.plan = "dense"
    torch.nn.init.normal_(layer.bias)
    x = torch.randn(*shape, requires_grad=True)
    right = x @ layer.matrix().to_dense().mT + layer.bias
    torch.testing.assert_close(layer(x), right)
    wanted = torch.autograd.grad(right.square().sum(), [x, *layer.parameters()])
    got = torch.autograd.grad(layer(x).square().sum(), [x, *layer.parameters()])
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(layer.eval()(x), right.detach())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_which_products_add_it_apart(monkeypatch):
    x = torch.zeros(4, 8, device="cuda")
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    assert dense_route.adds_apart(x)
    assert not dense_route.adds_apart(x[:1])
    assert not any(map(dense_route.adds_apart, (x.double(), x.bfloat16(), x.cpu())))
    with torch.autocast("cuda", torch.bfloat16):
        assert not dense_route.adds_apart(x)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
    assert not dense_route.adds_apart(x)
