"""What the steps of a product cost: the few numbers by which routes are compared.

`benchmarks/routes.py` times all routes and tells how far the choices are from the best ones, and
`benchmarks/fit_costs.py` fits these numbers to that. They need to be right to a factor of two or so: routes
differ by more where it matters.
"""

from __future__ import annotations

import math
import platform
from functools import lru_cache
from typing import NamedTuple

import torch

from .routes import Call


class Machine(NamedTuple):
    """Seconds on a device, in float32."""

    call: float  # to start an operation of torch
    replay: float  # the same in a graph that was captured
    entry: float  # an entry of a tensor, read and written by an elementwise operation
    large: float  # the same of a tensor above `LARGE`, which fits no cache and gets its memory anew
    fft: float  # an entry of a batch of FFTs, times log2 of its length
    fewest: int  # FFTs: fewer than these take as long as they
    multiply: float  # a multiply-add of a large matrix product
    tf32: float  # the same where factors may be rounded
    half: float  # the same in bfloat16 or float16
    stream: float  # an entry of a matrix that is read as it lies, for one vector
    pack: float  # an entry of a matrix that is arranged anew first, for several
    compiled: float  # an entry of the compiled FFT, times log2 of its length
    transform: float  # to start one such FFT
    start: float  # to start a compiled function
    stencil: float  # an entry of a Krylov matrix by the compiled stencil
    lstm: float  # how many times as long as its matrix products torch's own LSTM takes
    threads: int | None = None  # of torch, two or more; None where other counts were not measured


def _bfloat16_multiply() -> float:
    """A multiply-add on this CPU: with instructions of its own, by way of float32, or one by one."""
    known = (getattr(torch.cpu, f"_is_{name}_supported", bool)() for name in ("amx_tile", "avx512_bf16"))
    if any(known):
        return 2e-12
    if platform.machine() not in ("aarch64", "arm64"):
        return 40e-12
    try:
        return 9e-12 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else 8e-9
    except (AttributeError, RuntimeError):  # built without oneDNN
        return 40e-12


_HALF = _bfloat16_multiply()
# Fitted by `benchmarks/fit_costs.py` to two cores of an x86-64 server, one of an ARM server, and an H200.
_X86 = Machine(
    call=10e-6, replay=10e-6, entry=0.36e-9, large=0.8e-9, fft=45e-12, fewest=64, multiply=10e-12,
    tf32=10e-12, half=_HALF, stream=0.11e-9, pack=0.31e-9, compiled=250e-12, transform=0.2e-6, start=3e-6,
    stencil=1.2e-9, lstm=1, threads=2,
)  # fmt: skip
_ARM = Machine(
    call=14e-6, replay=14e-6, entry=1.1e-9, large=1.1e-9, fft=240e-12, fewest=4, multiply=61e-12,
    tf32=61e-12, half=_HALF, stream=0.2e-9, pack=1.15e-9, compiled=500e-12, transform=0.1e-6, start=1e-6,
    stencil=1.7e-9, lstm=4,
)  # fmt: skip
_CUDA = Machine(
    call=15e-6, replay=2e-6, entry=1e-12, large=1e-12, fft=0.2e-12, fewest=64, multiply=0.06e-12,
    tf32=0.0065e-12, half=0.003e-12, stream=1.1e-12, pack=1.1e-12, compiled=1.0, transform=1.0, start=200e-6,
    stencil=1e-12, lstm=1,
)  # fmt: skip
CPUS = {"x86_64": _X86, "aarch64": _ARM}
MACHINES = {"cpu": CPUS.get(platform.machine(), _X86), "cuda": _CUDA}

LARGE = 1 << 21  # entries: from there on a CPU loses them from its caches and asks the system for memory
TRACKED = 2.0  # how much longer an operation takes to start where autograd follows


def fft_multiply_adds(n: int) -> float:
    """Of a real transform of length n: some 2.5 n log2 n operations, and two make a multiply-add."""
    return 1.25 * n * math.log2(n) if n > 1 else 0.0


def machine(call: Call) -> Machine:
    found = MACHINES.get(call.device, MACHINES["cpu"])
    return found if found.threads is None else _shared(found, torch.get_num_threads())


@lru_cache
def _shared(on: Machine, threads: int) -> Machine:
    """The numbers with so many threads, from those with `on.threads`, as measured with 1, 2, 8 and 16.

    A matrix is read faster by each more, all else that torch does gains by the second alone, beside compiled
    loops that share their rows.
    """
    read, lone = math.sqrt((on.threads or 1) / threads), 1.3 if threads == 1 else 1.0
    alike = "entry", "large", "fft", "multiply", "half", "stencil"
    longer = dict.fromkeys(alike, lone) | dict.fromkeys(("stream", "pack"), read)
    return on._replace(**{name: getattr(on, name) * factor for name, factor in longer.items()})


def started(call: Call, operations: float = 1) -> float:
    """To start so many operations; autograd notes each of them."""
    if call.captured:
        return operations * machine(call).replay
    return (TRACKED if call.needs_grad else 1) * operations * machine(call).call


def wide(call: Call) -> float:
    """How much longer numbers of this dtype take than float32."""
    return 2.0 if call.dtype == torch.float64 else 1.0


def passes(call: Call, entries: float, count: float = 1) -> float:
    """So many elementwise operations on tensors of so many entries."""
    on, entries = machine(call), entries * call.matrices
    entry = on.large if entries > LARGE else on.entry
    return count * (started(call) + wide(call) * entry * entries)


def ffts(call: Call, count: float, length: int) -> float:
    """One call of an FFT: so many transforms of a length."""
    on = machine(call)
    return started(call) + wide(call) * on.fft * max(count * call.matrices, on.fewest) * length * math.log2(
        max(length, 2)
    )


def compiled_ffts(call: Call, count: float, length: int, operations: float) -> float:
    """One call of a compiled function that makes so many transforms, and so many operations of torch."""
    on = machine(call)
    transform = on.transform + wide(call) * on.compiled * length * math.log2(max(length, 2))
    return on.start + started(call, operations) + count * transform


def copies(call: Call, entries: float, forward: float, trained: float) -> float:
    """`passes` of a product by FFTs, whose gradient on a GPU reads and writes more than operations tell."""
    seconds = passes(call, entries, forward)
    if not call.needs_grad or call.device != "cuda":
        return seconds
    more = trained - forward  # of which some are operations of their own
    return seconds + passes(call._replace(captured=True), entries, more) + started(call, more / 4)


def gemm(call: Call, rows: float, m: int, n: int) -> float:
    """A matrix product (rows, n) by (n, m), in the dtype of the call."""
    on, narrow = machine(call), call.dtype.itemsize < 4
    arithmetic = (on.half if narrow else on.tf32 if call.tf32 else on.multiply) * rows
    reading = on.pack * (0.5 if narrow else 1.0) if narrow or rows > 1 else on.stream
    return started(call) + wide(call) * call.matrices * m * n * max(arithmetic, reading)


def backward(call: Call, seconds: float) -> float:
    """Forward and backward of what takes this long forward."""
    return 3 * seconds if call.needs_grad else seconds
