"""The paper's Algorithm 1 against the definition, and its FFTs against the theorem."""

import math

import pytest
import torch
from torch.overrides import TorchFunctionMode

from torchldr.functional.paper import krylov_multiply_reference, krylov_transpose_reference
from torchldr.functional.reference import krylov_reference, subdiagonal_reference
from torchldr.testing import REGIMES, tolerance


def problem(m, regime="near one", b=3, r=2):
    g = torch.Generator().manual_seed(m)
    s = REGIMES[regime](torch.empty(m - 1, dtype=torch.float64), g)
    V, u, w = (torch.randn(*shape, dtype=torch.float64, generator=g) for shape in ((r, m), (b, m), (b, r, m)))
    A = subdiagonal_reference(s, torch.zeros((), dtype=torch.float64))
    return s, V, u, w, torch.stack([krylov_reference(A, v, m) for v in V])


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("m", [1, 2, 4, 64, 256])
def test_matches_the_definition(m, regime):
    s, V, u, w, K = problem(m, regime)
    for got, want, size in (
        (krylov_transpose_reference(s, V, u), "rmk,bm->brk", u),
        (krylov_multiply_reference(s, V, w), "rmk,brk->bm", w),
    ):
        error = (got - torch.einsum(want, K, size)).abs().max()
        assert error <= tolerance(torch.float64, m) * torch.einsum(want, K.abs(), size.abs()).max()


class CountFFTs(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in (torch.fft.rfft, torch.fft.irfft):
            real = args[0] if func is torch.fft.rfft else result
            self.sizes.append(real.numel() // real.shape[-1] * args[1])
        return result


@pytest.mark.parametrize("m", [64, 1024])
def test_needs_fewer_batched_ffts_than_the_theorem_allows(m):
    s, V, u, _, _ = problem(m, b=1, r=1)
    with CountFFTs() as count:
        krylov_transpose_reference(s, V, u)
    assert len(count.sizes) == 3 * math.log2(m) <= 8 * math.log2(m)
    assert max(count.sizes) <= 2 * m


def test_refuses_other_lengths():
    with pytest.raises(ValueError, match="power of two, got 6"):
        krylov_transpose_reference(torch.ones(5), torch.ones(1, 6), torch.ones(1, 6))
