"""The LSTM of many replicas, forward and backward by hand: few operations a time step.

    a = W x + b + U h        gates o, i, f, g in this order: three sigmoids, three with c's gradient
    c' = f c + i g
    h' = o tanh(c')

A step of a small LSTM on a GPU takes as long as it has kernels. All that does not depend on the step
before is done for all steps at once: the input products, and in the backward pass the factors

    dc = dh o (1 - tanh^2 c') + dc'' f''
    da = (dh tanh(c') o(1-o), dc g i(1-i), dc c f(1-f), dc i (1-g^2)),

which leaves seven kernels a step forward and five backward. Gradients stop at the state that the batch begins
with.

On a GPU `recurrence.cu` makes them one kernel each way for all steps. A block of 4H threads keeps a replica's
U, half of it in registers and half in shared memory, and takes four columns of the batch through all steps: a
thread is a gate's unit in the products and a column's unit in the cell between them. The plain form is the
oracle: a test runs that source as plain C++.
"""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

import torch
from torch import Tensor

from torchldr.kernels.cuda.nvrtc import launch, unavailable

GATES = COLUMNS = 4  # a block's threads are gates x units, and columns x units
MOST_THREADS, MOST_BYTES_KEPT = 1024, 256  # of a block, and of a thread's registers
SOURCE = (resources.files(__package__) / "recurrence.cu").read_text("utf-8")
_NAMES = {torch.float32: "float", torch.float64: "double"}


class Trace(NamedTuple):
    """What a forward pass keeps: T steps of B columns for R replicas."""

    gates: Tensor  # after their nonlinearities, (R, T, B, 4, H)
    c: Tensor  # states, the one before the first step in front, (R, T + 1, B, H)
    h: Tensor  # alike


def forward(inputs: Tensor, U: Tensor, h: Tensor, c: Tensor) -> Trace:
    """Run the recurrence.

    Args:
        inputs: W x + b for every step, (R, T, B, 4H); it is overwritten by the gates.
        U: (R, 4H, H).
        h, c: the state to begin with, (R, B, H).
    """
    R, T, B, _ = inputs.shape
    H = U.shape[-1]
    states, cells = inputs.new_empty(R, T + 1, B, H), inputs.new_empty(R, T + 1, B, H)
    states[:, 0] = h
    cells[:, 0] = c
    transposed, trace = U.mT, Trace(inputs.view(R, T, B, 4, H), cells, states)
    if serves(trace.gates):
        _launch("recurrence_forward", trace.gates, [*trace, U])
        return trace
    for t in range(T):
        inputs[:, t].baddbmm_(states[:, t], transposed)
        _cell(*trace, t)
    return trace


def _cell(gates: Tensor, c: Tensor, h: Tensor, t: int) -> None:
    """Apply the nonlinearities to the gates of step t and make the states after it, in place."""
    now, after = gates[:, t], c[:, t + 1]
    now[..., :3, :].sigmoid_()
    now[..., 3, :].tanh_()
    o, i, f, g = now.unbind(-2)
    torch.mul(f, c[:, t], out=after)
    after.addcmul_(i, g)
    torch.mul(o, after.tanh(), out=h[:, t + 1])


def backward(trace: Trace, U: Tensor, dh: Tensor) -> Tensor:
    """The gradient of the gates before their nonlinearities, (R, T, B, 4H).

    Args:
        trace: of the forward pass.
        U: (R, 4H, H).
        dh: gradient of the outputs, (R, T, B, H); it may be overwritten.
    """
    gates, cells, _ = trace
    R, T, B, _, H = gates.shape
    if serves(gates):
        da = torch.empty_like(gates)
        _launch("recurrence_backward", gates, [gates, cells, dh, U, da])
        return da.view(R, T, B, 4 * H)
    o, i, f, g = gates.unbind(-2)
    squashed = cells[:, 1:].tanh()
    ends = o * (1 - squashed.square())
    factors = torch.stack(
        (squashed * o * (1 - o), g * i * (1 - i), cells[:, :-1] * f * (1 - f), i * (1 - g.square())), -2
    )
    da = torch.empty_like(factors)
    dc = torch.zeros_like(cells[:, 0])
    for t in range(T - 1, -1, -1):
        d = dh[:, t]
        if t < T - 1:
            d.baddbmm_(da[:, t + 1].flatten(-2), U)
        dc = torch.addcmul(dc, d, ends[:, t])
        torch.mul(factors[:, t, :, 1:], dc.unsqueeze(-2), out=da[:, t, :, 1:])
        torch.mul(factors[:, t, :, 0], d, out=da[:, t, :, 0])
        if t:
            dc = dc * f[:, t]
    return da.view(R, T, B, 4 * H)


def serves(gates: Tensor) -> bool:
    """Whether the kernels take such gates, (R, T, B, 4, H)."""
    H, size = gates.shape[-1], gates.element_size()
    fits = H % 8 == 0 and GATES * H <= MOST_THREADS and H // 2 * size <= MOST_BYTES_KEPT
    return gates.is_cuda and gates.dtype in _NAMES and fits and unavailable() is None


def head(dtype: torch.dtype, H: int) -> str:
    """What the source is compiled for."""
    return f"#define Real {_NAMES[dtype]}\n#define H {H}\n"


def _launch(name: str, gates: Tensor, tensors: list[Tensor]) -> None:
    R, T, B, _, H = gates.shape
    if not all(tensor.is_contiguous() for tensor in tensors):
        raise ValueError(f"{name}: expected contiguous tensors.")
    shared = (2 * GATES * COLUMNS * H + 2 * H * H) * gates.element_size()
    grid, source = (-(-B // COLUMNS), R, 1), head(gates.dtype, H) + SOURCE
    launch(source, name, gates.device, grid, GATES * H, [*tensors, T, B], shared)
