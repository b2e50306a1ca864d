"""CUDA kernels compiled at run time by NVRTC, which comes with torch: once for each source and device.

The library's own kernels are launched by this, and those of a class of your own can be.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import Any

import torch

from ...torch_private import cuda_device, cuda_stream

__all__ = ["Kernels", "launch", "unavailable"]

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
_granted: dict[Any, int] = {}  # bytes of shared memory that kernels may have, where they asked for many


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


class Kernels:
    """Kernels of one source that run one after the other, all with the same arguments.

    Args:
        source: the CUDA source.
        launches: for each kernel the name of its `extern "C" __global__` function, the blocks along each
            axis, and the threads of a block.
        shared: bytes of shared memory that the kernels do not declare themselves.
        moves: numbers that are added to the first arguments after each kernel, bytes for pointers.
    """

    def __init__(
        self,
        source: str,
        launches: Sequence[tuple[str, Grid, int]],
        shared: int = 0,
        moves: Sequence[int] = (),
    ) -> None:
        self._source, self._launches, self._shared, self._moves = source, launches, shared, moves
        self._ready: dict[int, list[Callable[..., int]]] = {}

    def queue(self, device: torch.device, arguments: Sequence[Any]) -> None:
        """Queue them on the current stream.

        Args:
            device: where; a compiled kernel belongs to one device.
            arguments: contiguous tensors on the device, and ints; 0 is a null pointer.
        """
        current = cuda_device()
        index = current if device.index is None else device.index
        if index == current:
            self._queue(index, arguments)
            return
        with torch.cuda.device(index):
            self._queue(index, arguments)

    def _queue(self, index: int, arguments: Sequence[Any]) -> None:
        if index not in _thread.devices:  # another thread may have compiled it
            _enter(index)
        ready = self._ready.get(index)
        if ready is None:
            ready = self._ready[index] = [self._prepare(index, *launch) for launch in self._launches]
        # As a kernel's own call, which takes several times as long to look at each argument.
        values, places = _thread.words(len(arguments))
        values[:] = [a if isinstance(a, int) else a.data_ptr() for a in arguments]
        stream = ctypes.c_void_p(cuda_stream(index))
        for launch in ready:
            if failed := launch(stream, places, None):
                raise RuntimeError(f"CUDA refused to launch one of {self._launches}: {failed}.")
            for i, by in enumerate(self._moves):
                values[i] += by

    def _prepare(self, index: int, name: str, grid: Grid, threads: int) -> Callable[..., int]:
        kernel = compiled(self._source, name, index)
        if self._shared >= max(_PLAIN_SHARED, _granted.get(kernel, 0)):
            kernel.set_shared_memory_config(self._shared)
            _granted[kernel] = self._shared
        return partial(_library().cuLaunchKernel, kernel.func, *grid, threads, 1, 1, self._shared)


@lru_cache(maxsize=4096)
def _kernel(
    source: str, name: str, grid: Grid, threads: int, shared: int, times: int, moves: Sequence[int]
) -> Kernels:
    return Kernels(source, [(name, grid, threads)] * times, shared, moves)


def launch(
    source: str,
    name: str,
    device: torch.device,
    grid: Grid,
    threads: int,
    arguments: Sequence[Any],
    shared: int = 0,
    times: int = 1,
    moves: tuple[int, ...] = (),
) -> None:
    """Queue one kernel this many times; the arguments are those of `Kernels`."""
    _kernel(source, name, grid, threads, shared, times, moves).queue(device, arguments)


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
    """The kernel on the current device, whose number is `device`."""
    _enter(device)
    return torch.cuda._compile_kernel(source, name)
