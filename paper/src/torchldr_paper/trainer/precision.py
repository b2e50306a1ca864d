"""How a GPU multiplies matrices, for a while: with TF32 where digits may go, or with wide sums."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def matmul_flags(device: torch.device, **flags: bool) -> Iterator[None]:
    """Set flags of `torch.backends.cuda.matmul` in here, where the device is a GPU."""
    options = torch.backends.cuda.matmul
    chosen = flags if device.type == "cuda" else {}
    before = {name: getattr(options, name) for name in chosen}
    try:
        for name, flag in chosen.items():
            setattr(options, name, flag)
        yield
    finally:
        for name, flag in before.items():
            setattr(options, name, flag)


def tf32(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Let products of float32 round their factors to TF32 (10 bits) on a GPU."""
    return matmul_flags(device, allow_tf32=True)


def wide_sums(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Keep parts of a sum that is split over a GPU in float32, where torch would round them to bfloat16."""
    return matmul_flags(device, allow_bf16_reduced_precision_reduction=False)
