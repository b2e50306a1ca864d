"""The recurrence of many small LSTMs as one CUDA kernel each way.

A step of a small LSTM takes as long as it has kernels, and a batch has 35 steps. Here a block of 4H threads
keeps one replica's U, half of it in registers and half in shared memory, and takes four columns of the batch
through all steps: a thread is a gate's unit in the products and a column's unit in the cell between them. The
plain form in `recurrence` is the oracle: a test runs this source as plain C++.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

import torch
from torch import Tensor

from torchldr.kernels.cuda.nvrtc import launch, unavailable

GATES = COLUMNS = 4  # a block's threads are gates x units, and columns x units
MOST_THREADS, MOST_BYTES_KEPT = 1024, 256  # of a block, and of a thread's registers

SOURCE = (resources.files(__package__) / "recurrence.cu").read_text("utf-8")


def serves(gates: Tensor) -> bool:
    """Whether the kernels take such gates, (R, T, B, 4, H)."""
    H, size = gates.shape[-1], gates.element_size()
    fits = H % 8 == 0 and GATES * H <= MOST_THREADS and H // 2 * size <= MOST_BYTES_KEPT
    return gates.is_cuda and gates.dtype in _NAMES and fits and unavailable() is None


def forward(gates: Tensor, c: Tensor, h: Tensor, U: Tensor) -> None:
    """Take the states through all steps, in place.

    Args:
        gates: W x + b, (R, T, B, 4, H); becomes the gates after their nonlinearities.
        c, h: (R, T + 1, B, H), the first of each given.
        U: (R, 4H, H).
    """
    _launch("recurrence_forward", gates, [gates, c, h, U])


def backward(gates: Tensor, c: Tensor, dh: Tensor, U: Tensor) -> Tensor:
    """The gradient of the gates before their nonlinearities, from that of the outputs, (R, T, B, H)."""
    da = torch.empty_like(gates)
    _launch("recurrence_backward", gates, [gates, c, dh, U, da])
    return da


_NAMES = {torch.float32: "float", torch.float64: "double"}


def head(dtype: torch.dtype, H: int) -> str:
    """What the source is compiled for."""
    return f"#define Real {_NAMES[dtype]}\n#define H {H}\n"


def _launch(name: str, gates: Tensor, tensors: list[Any]) -> None:
    R, T, B, _, H = gates.shape
    if not all(tensor.is_contiguous() for tensor in tensors):
        raise ValueError(f"{name}: expected contiguous tensors.")
    shared = (2 * GATES * COLUMNS * H + 2 * H * H) * gates.element_size()
    grid, source = (-(-B // COLUMNS), R, 1), head(gates.dtype, H) + SOURCE
    launch(source, name, gates.device, grid, GATES * H, [*tensors, T, B], shared)
