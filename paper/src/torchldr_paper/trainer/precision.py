"""Matrix products of float32 on a GPU, by TF32 where digits may go."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def tf32(device: torch.device) -> Iterator[None]:
    """Let products of float32 round their factors to TF32 (10 bits) on a GPU."""
    if device.type != "cuda":
        yield
        return
    flags = torch.backends.cuda.matmul
    before, flags.allow_tf32 = flags.allow_tf32, True
    try:
        yield
    finally:
        flags.allow_tf32 = before
