"""What hand-written backwards take for memory that compiled loops may read."""

import pytest
import torch
from torch.autograd import forward_ad

import torchldr
from torchldr import testing
from torchldr.functional.stencil import is_plain


@pytest.mark.parametrize("name", ["circulant", "block_circulant", "ldr_sd", "ldr_td", "toeplitz_like"])
def test_a_tangent_of_what_comes_back(name):
    """Loops see memory alone: a backward of a dual must not go through them."""
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


def test_plain_is_what_is_nothing_but_memory():
    x = torch.randn(3)
    assert is_plain(x)
    with forward_ad.dual_level():
        assert is_plain(x)
        assert not is_plain(forward_ad.make_dual(x, x))
    assert torch.vmap(lambda v: v * is_plain(v))(x).eq(0).all()
