"""CUDA kernels compiled at run time by NVRTC, which comes with torch: once for each source and device."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

Grid = tuple[int, int, int]

_PLAIN_SHARED = 48 << 10  # bytes; a kernel has to ask for more


def launch(
    source: str,
    name: str,
    device: torch.device,
    grid: Grid,
    threads: int,
    arguments: list[Any],
    shared: int = 0,
) -> None:
    """Queue a kernel.

    Args:
        source: what it is compiled from.
        name: of the `extern "C" __global__` function.
        device: where; a compiled kernel belongs to one device.
        grid: blocks along each axis.
        threads: of a block.
        arguments: tensors, contiguous and on the device, and numbers.
        shared: bytes of shared memory that the kernel does not declare itself.
    """
    with torch.cuda.device(device):
        kernel = compiled(source, name, torch.cuda.current_device())
        if shared >= _PLAIN_SHARED:
            kernel.set_shared_memory_config(shared)
        kernel(grid, (threads, 1, 1), arguments, shared)


@cache
def compiled(source: str, name: str, device: int) -> Any:
    """The kernel, on the current device, which `device` is the number of."""
    return torch.cuda._compile_kernel(source, name)
