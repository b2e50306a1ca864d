"""The LSTM of many replicas, forward and backward by hand: few operations a time step.

    a = W x + b + U h        gates o, i, f, g in this order: three sigmoids, three with c's gradient
    c' = f c + i g
    h' = o tanh(c')

A step of a small LSTM on a GPU takes as long as it has kernels. All that does not depend on the step
before is done for all steps at once: the input products, and in the backward pass the factors

    dc = dh o (1 - tanh^2 c') + dc'' f''
    da = (dh tanh(c') o(1-o), dc g i(1-i), dc c f(1-f), dc i (1-g^2)),

which leaves seven kernels a step forward and five backward; on a GPU `cuda.recurrence` makes them one for all
steps. Gradients stop at the state that the batch begins with.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .cuda import recurrence as cuda_recurrence


class Trace(NamedTuple):
    """What a forward pass keeps: T steps of B columns for R replicas.

    Attributes:
        gates: after their nonlinearities, (R, T, B, 4, H).
        c, h: states, the one before the first step in front, (R, T + 1, B, H).
    """

    gates: Tensor
    c: Tensor
    h: Tensor


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
    if cuda_recurrence.serves(trace.gates):
        cuda_recurrence.forward(*trace, U)
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
    if cuda_recurrence.serves(gates):
        return cuda_recurrence.backward(gates, cells, dh, U).view(R, T, B, 4 * H)
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
