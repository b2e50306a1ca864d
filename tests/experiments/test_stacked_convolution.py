from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import conv2d

from torchldr.experiments.stacked_convolution import replica_convolution


@settings(deadline=None, max_examples=20)
@given(
    R=st.integers(1, 3),
    b=st.integers(1, 3),
    c=st.integers(1, 3),
    o=st.integers(1, 4),
    h=st.integers(1, 7),
    w=st.integers(1, 7),
    q=st.sampled_from([1, 3, 5]),
)
def test_each_replica_is_a_convolution(R: int, b: int, c: int, o: int, h: int, w: int, q: int) -> None:
    g = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(*shape, dtype=torch.float64, generator=g, requires_grad=True)
        for shape in ((R, b, c, h, w), (R, o, c, q, q), (R, o))
    )
    got = replica_convolution(x, weight, bias).movedim(-1, 2)
    want = torch.stack([conv2d(x[i], weight[i], bias[i], padding=q // 2) for i in range(R)])
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    u = torch.randn(got.shape, dtype=torch.float64, generator=g)
    leaves = (x, weight, bias)
    for mine, theirs in zip(
        torch.autograd.grad(got, leaves, u), torch.autograd.grad(want, leaves, u), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
