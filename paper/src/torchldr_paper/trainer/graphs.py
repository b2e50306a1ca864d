"""A training step: on a GPU captured as a CUDA graph once for each size of batch, then replayed.

Also contexts for matrix products on a GPU: with TF32 where fewer digits will do, or with wide sums.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

_WARM_UP = 3  # steps before capture: libraries make their plans and workspaces in the first ones


class StepGraphs:
    """Replays `step(size)` on a GPU; on a CPU the step runs as it is written.

    Args:
        step: what to capture. It must work on tensors that stay where they are, change only `state` in
            place, and read no value on the host.
        state: the tensors that a step changes. Warming up runs real steps, so they are put back.
        stream: where to capture and replay; by default replays run on the current stream. Graphs that are
            to run side by side need streams of their own: matrix libraries keep a workspace a stream.
    """

    def __init__(
        self, step: Callable[[int], None], state: Sequence[Tensor], stream: torch.cuda.Stream | None = None
    ) -> None:
        self._step, self._state, self._stream = step, state, stream
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def replay(self, size: int) -> None:
        """One step on a batch of this size; captures it first where that was not done."""
        if not self._state[0].is_cuda:
            self._step(size)
            return
        if size not in self._graphs:
            self._graphs[size] = self._capture(size)
        if self._stream is None:
            self._graphs[size].replay()
            return
        with torch.cuda.stream(self._stream):
            self._graphs[size].replay()

    def clear(self) -> None:
        """Forget what was captured: the step has changed."""
        if self._graphs:
            torch.cuda.synchronize()
            self._graphs.clear()

    def _capture(self, size: int) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream() if self._stream is None else self._stream
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            saved = [t.detach().clone() for t in self._state]  # behind the replays that still run there
            for _ in range(_WARM_UP):
                self._step(size)
                # Back at once: further steps would leave the epoch's images behind.
                with torch.no_grad():
                    for tensor, value in zip(self._state, saved, strict=True):
                        tensor.copy_(value)
        torch.cuda.current_stream().wait_stream(side)
        gc.collect()  # a graph of an earlier run that is collected during capture would spoil it
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None
        with torch.cuda.graph(graph, pool=pool, stream=self._stream):
            self._step(size)
        return graph


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
