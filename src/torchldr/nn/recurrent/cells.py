"""One step of an LSTM and of a GRU, and a sequence of steps.

The input products of all steps come in ready made; what is left of a step is the product with the state
before it and the update equations, which are those of the paper's appendix and of torch:

    LSTM    i = sigmoid(W_ii x + b_ii + W_hi h + b_hi)
            f = sigmoid(W_if x + b_if + W_hf h + b_hf)
            g = tanh(W_ig x + b_ig + W_hg h + b_hg)
            o = sigmoid(W_io x + b_io + W_ho h + b_ho)
            c' = f c + i g
            h' = o tanh(c'), times W_hr where there is a projection

    GRU     r = sigmoid(W_ir x + b_ir + W_hr h + b_hr)
            z = sigmoid(W_iz x + b_iz + W_hz h + b_hz)
            n = tanh(W_in x + b_in + r (W_hn h + b_hn))
            h' = (1 - z) n + z h
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import linear

State: TypeAlias = tuple[Tensor, ...]  # (h, c) of an LSTM, (h,) of a GRU, each (b, size)
Step: TypeAlias = Callable[[Tensor, State], State]
Product: TypeAlias = Callable[[Tensor], Tensor]


def lstm_step(x: Tensor, state: State, hidden: Product, projection: Tensor | None = None) -> State:
    """The state after one step of an LSTM.

    Args:
        x: input products of the gates i, f, g, o with their bias, shape (b, 4 h).
        state: (h, c) before the step.
        hidden: the product of h with the matrices of the gates, with their bias, (b, h) to (b, 4 h).
        projection: W_hr, shape (proj_size, h), or None.
    """
    h, c = state
    products = hidden(h)
    dtypes = torch.promote_types(x.dtype, products.dtype), torch.promote_types(x.dtype, c.dtype)
    i, f, g, o = (_wide(x) + products).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = (o.sigmoid() * c.tanh()).to(dtypes[0])
    return (h if projection is None else linear(h, projection)), c.to(dtypes[1])


def _wide(x: Tensor) -> Tensor:
    """In float32 or wider: a step is rounded once, at its end, as in torch's own layers."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def gru_step(x: Tensor, state: State, hidden: Product) -> State:
    """The state after one step of a GRU: as `lstm_step`, with the gates r, z, n and no projection."""
    (h,) = state
    products = hidden(h)
    dtype = torch.promote_types(torch.promote_types(x.dtype, products.dtype), h.dtype)
    x_r, x_z, x_n = _wide(x).chunk(3, -1)
    h_r, h_z, h_n = products.chunk(3, -1)
    n = (x_n + (x_r + h_r).sigmoid() * h_n).tanh()
    return ((n + (x_z + h_z).sigmoid() * (h - n)).to(dtype),)


def run_steps(
    step: Step, x: Tensor, state: State, batch_sizes: Sequence[int], *, reverse: bool = False
) -> tuple[Tensor, State]:
    """Run the steps of a batch of sequences, the longest first.

    Args:
        step: one step.
        x: input products of all steps, one step's after the other, shape (sum of batch_sizes, ..).
        state: the state before the first step of each sequence, (batch_sizes[0], size) each.
        batch_sizes: how many sequences reach each step, never growing.
        reverse: whether to run from each sequence's last step to its first.

    Returns:
        h after every step in the order of `x`, and the state after each sequence's last one.
    """
    inputs = x.split(list(batch_sizes))
    return _backward(step, inputs, state) if reverse else _forward(step, inputs, state)


def _forward(step: Step, inputs: Sequence[Tensor], state: State) -> tuple[Tensor, State]:
    outputs: list[Tensor] = []
    ended: list[State] = []  # states of sequences that are over, the shortest first
    for x in inputs:
        if x.shape[0] < state[0].shape[0]:
            ended.append(tuple(s[x.shape[0] :] for s in state))
            state = tuple(s[: x.shape[0]] for s in state)
        state = step(x, state)
        outputs.append(state[0])
    if ended:
        state = tuple(torch.cat(parts) for parts in zip(state, *reversed(ended), strict=True))
    return torch.cat(outputs), state


def _backward(step: Step, inputs: Sequence[Tensor], start: State) -> tuple[Tensor, State]:
    outputs: list[Tensor] = []
    state: State = tuple(s[:0] for s in start)
    for x in reversed(inputs):
        if (before := state[0].shape[0]) < x.shape[0]:  # some sequences begin, at their end, here
            joining = (s[before : x.shape[0]] for s in start)
            state = tuple(torch.cat(parts) for parts in zip(state, joining, strict=True))
        state = step(x, state)
        outputs.append(state[0])
    return torch.cat(outputs[::-1]), state
