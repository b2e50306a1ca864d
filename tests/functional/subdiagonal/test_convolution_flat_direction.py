"""A times f and C over f have the same product: prepared products must not see f."""

from __future__ import annotations

import pytest
import torch

from torchldr import testing
from torchldr.functional.doubling import shifted_sum
from torchldr.functional.subdiagonal import convolution, pair
from torchldr.functional.subdiagonal.guard import guard
from torchldr.kernels.cpu import library

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "f"), [(64, 4.0), (64, 0.25), (256, 1.5), (512, 1.2)])
def test_prepared_products(n: int, f: float, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(n)
    s, e, g, h = (torch.randn(shape, n, generator=draw, dtype=torch.float64) for shape in (1, 1, 2, 2))
    a, c = (1 + 0.01 * s[0]) * f, (1 + 0.01 * e[0]) / f
    A, C = ((t[1:].to(dtype), t[0].to(dtype), V.to(dtype)) for t, V in ((a, g), (c, h)))
    lower = [
        torch.cat((side[1].reshape(1), side[0])).double() / scale for side, scale in ((A, f), (C, 1 / f))
    ]
    M = shifted_sum(A[2].double().mT @ C[2].double(), *lower, n)
    x = torch.randn(3, n, generator=draw, dtype=torch.float64).to(dtype)
    assert not isinstance(guard(A, C), str)
    K = convolution.prepare(A, C)
    assert isinstance(K, convolution.Constants)
    for y in (
        convolution.product(x.to(K.A.dtype), *K),
        pair.product(x, *(t.to(dtype) for t in pair.prepare(A, C))),
    ):
        right = x.double() @ M.mT
        assert (y - right).norm() <= testing.tolerance(dtype, n) * right.norm()
