"""Timing that can be compared: minima over repeats, both sides in turn in one run."""

from __future__ import annotations

import gc
import platform
import time
from collections.abc import Callable, Mapping

import torch

from .version import __version__

__all__ = ["captured", "machine", "minimum_seconds", "replay_seconds"]


def minimum_seconds(
    candidates: Mapping[str, Callable[[], object]], repeats: int = 20, seconds: float = 0.5
) -> dict[str, float]:
    """The shortest time of each candidate, in seconds a call.

    The candidates take turns, so that other load on the machine affects all of them alike. There are at least
    `repeats` rounds, which go on for about `seconds` a candidate. Calls of less than 200 us are timed in
    batches, because of the clock's resolution.
    """
    counts, best = {}, dict.fromkeys(candidates, float("inf"))
    for name, call in candidates.items():
        call()
        start = time.perf_counter()
        call()
        counts[name] = max(1, int(200e-6 / max(time.perf_counter() - start, 1e-7)))
    start = time.perf_counter()
    rounds = 0
    while rounds < repeats or (
        time.perf_counter() - start < seconds * len(candidates) and rounds < 50 * repeats
    ):
        for name, call in candidates.items():
            count = counts[name]
            begin = time.perf_counter()
            for _ in range(count):
                call()
            best[name] = min(best[name], (time.perf_counter() - begin) / count)
        rounds += 1
    return best


def captured(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """The call as a CUDA graph, after three to warm up on a stream of their own.

    Garbage is collected first: a kernel or a graph that is unloaded during the recording would end it.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph, collects = torch.cuda.CUDAGraph(), gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with torch.cuda.graph(graph):
            call()
    finally:
        if collects:
            gc.enable()
    return graph


def replay_seconds(call: Callable[[], object], repeats: int = 30) -> float:
    """The shortest replay of a captured graph, by CUDA events, with nothing left in the L2 cache."""
    graph = captured(call)
    flush, best = torch.empty(1 << 26, device="cuda"), float("inf")
    for _ in range(repeats):
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / 1e3)
    return best


def machine() -> dict[str, object]:
    """What a timing was taken on."""
    return {
        "machine": platform.machine(),
        "system": platform.system(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchldr": __version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }
