"""CUDA kernels compiled at run time by NVRTC, which comes with torch: once for each source and device.

The library's own kernels are launched by this, and those of a class of your own can be.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from typing import Any

import torch
from torch import Tensor

__all__ = ["launch", "unavailable"]

Grid = tuple[int, int, int]

_PLAIN_SHARED = 48 << 10  # bytes; a kernel has to ask for more


class _Thread(threading.local):
    """What a thread has: the contexts of devices, and memory for arguments, which a launch copies."""

    def __init__(self) -> None:
        self.devices: set[int] = set()
        self._words: dict[int, tuple[Any, Any]] = {}

    def words(self, count: int) -> tuple[Any, Any]:
        """So many words, and their addresses."""
        if count not in self._words:
            values = (ctypes.c_int64 * count)()
            first = ctypes.addressof(values)
            places = (ctypes.c_void_p * count)(*range(first, first + 8 * count, 8))
            self._words[count] = values, places
        return self._words[count]


_thread = _Thread()


@cache
def unavailable() -> str | None:
    """Why kernels cannot be used on this machine, or None where they can."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    if not hasattr(torch.cuda, "_compile_kernel"):
        return "this torch cannot compile CUDA kernels at run time"
    try:
        compiled('extern "C" __global__ void nothing() {}', "nothing", torch.cuda.current_device())
    except RuntimeError as error:
        return f"NVRTC failed: {error}"
    return None


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
        arguments: tensors, contiguous and on the device, and whole numbers; 0 for a pointer to nothing.
        shared: bytes of shared memory that the kernel does not declare itself.
    """
    current = torch.cuda.current_device()
    index = current if device.index is None else device.index
    if index == current:
        _launch(source, name, index, grid, threads, arguments, shared)
        return
    with torch.cuda.device(index):
        _launch(source, name, index, grid, threads, arguments, shared)


def _launch(
    source: str, name: str, index: int, grid: Grid, threads: int, arguments: list[Any], shared: int
) -> None:
    if index not in _thread.devices:  # a thread may be new to what another has compiled
        _enter(index)
    kernel = compiled(source, name, index)
    if shared >= _PLAIN_SHARED:
        kernel.set_shared_memory_config(shared)
    # As the kernel's own call, which takes several times as long to look at each argument.
    values, places = _thread.words(len(arguments))
    values[:] = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
    stream = ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(index))
    failed = _library().cuLaunchKernel(kernel.func, *grid, threads, 1, 1, shared, stream, places, None)
    if failed:
        raise RuntimeError(f"CUDA refused to launch {name} with {grid} blocks of {threads}: {failed}.")


@cache
def _library() -> Any:
    """The driver."""
    from torch.cuda import _utils

    named = ("_get_gpu_runtime_library", "_get_cuda_library")
    return next(getattr(_utils, name) for name in named if hasattr(_utils, name))()


def _enter(device: int) -> None:
    """Give this thread the device's context, once.

    Kernels are loaded and launched through the driver, which takes the thread's context, and autograd's own
    thread has none before its first call of the CUDA runtime: an event is one.
    """
    if device not in _thread.devices:
        torch.cuda.current_stream().record_event()
        _thread.devices.add(device)


@cache
def compiled(source: str, name: str, device: int) -> Any:
    """The kernel, on the current device, which `device` is the number of."""
    _enter(device)
    return torch.cuda._compile_kernel(source, name)
