"""Halves of numbers, by the kernel run as plain C++."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from torchldr.kernels.cuda import halves

TAIL = r"""
extern "C" void run_halves(int x, int n, const float* t, bf16* high, bf16* low, i64 count)
    { run(x, 1, n, [=] { halves(t, high, low, count); }); }
"""


@pytest.mark.parametrize("shape", [(1,), (3,), (4, 1), (5, 7), (2, 600), (0, 3)])
def test_their_sum_is_right_to_2_to_the_minus_17(
    compile_kernels: Callable[[str, str], ctypes.CDLL],
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, ...],
) -> None:
    def launch(t: Tensor, both: Tensor, count: int, room: int) -> None:
        blocks, high = -(-room // (halves.THREADS * halves.EACH)), both.data_ptr()
        given = map(ctypes.c_void_p, (t.data_ptr(), high, high + 2 * room, count))
        compile_kernels(halves.SOURCE, TAIL).run_halves(blocks, halves.THREADS, *given)

    monkeypatch.setattr(halves, "launch", launch)
    t = (
        torch.randn(shape, generator=torch.Generator().manual_seed(0)).mT
        if len(shape) > 1
        else torch.ones(1) / 3
    )
    high, low = halves.split(t)
    assert torch.equal(high, t.bfloat16())
    assert torch.equal(low, (t - t.bfloat16()).bfloat16())
    assert ((high.double() + low.double() - t).abs() <= 2**-17 * t.abs()).all()
