"""Gradients of duals do not go through kernels, which see memory alone."""

import pytest
import torch
from torch.autograd import forward_ad

import torchldr
from torchldr import testing


@pytest.mark.parametrize("name", ["circulant", "block_circulant", "ldr_sd", "ldr_td", "toeplitz_like"])
def test_a_tangent_of_what_comes_back(name):
    """A backward of a dual has a tangent."""
    M = testing.member(torchldr.get_structure(name), 64, 64)
    x = torch.randn(2, 64, dtype=torch.float64, requires_grad=True)
    u, tangent = torch.randn(2, 2, 64, dtype=torch.float64)
    for product in ("fast", "dense"):
        y = M.matmul(x, product=product)
        with forward_ad.dual_level():
            (dx,) = torch.autograd.grad(y, x, forward_ad.make_dual(u, tangent))
            found = forward_ad.unpack_dual(dx).tangent
        assert found is not None, product
        assert torch.allclose(found, tangent @ M.to_dense()), product
