"""CUDA kernels compiled at run time by NVRTC, which comes with torch: once for each source and device."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import torch

Grid = tuple[int, int, int]

_PLAIN_SHARED = 48 << 10  # bytes; a kernel has to ask for more
_thread = threading.local()


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
        _enter(torch.cuda.current_device())  # a thread may be new to what another has compiled
        kernel = compiled(source, name, torch.cuda.current_device())
        if shared >= _PLAIN_SHARED:
            kernel.set_shared_memory_config(shared)
        kernel(grid, (threads, 1, 1), arguments, shared)


def _enter(device: int) -> None:
    """Give this thread the device's context, once.

    Kernels are loaded and launched through the driver, which takes the thread's context, and autograd's own
    thread has none before its first call of the CUDA runtime: an event is one.
    """
    entered: set[int] = _thread.__dict__.setdefault("devices", set())
    if device not in entered:
        torch.cuda.current_stream().record_event()
        entered.add(device)


@cache
def compiled(source: str, name: str, device: int) -> Any:
    """The kernel, on the current device, which `device` is the number of."""
    _enter(device)
    return torch.cuda._compile_kernel(source, name)
