"""One step of an LSTM and of a GRU, and a sequence of steps.

The input products of all steps are computed beforehand. A step adds the product with the previous state
and applies the update equations, which are those of the paper's appendix and of torch:

    LSTM    i = sigmoid(W_ii x + b_ii + W_hi h + b_hi)
            f = sigmoid(W_if x + b_if + W_hf h + b_hf)
            g = tanh(W_ig x + b_ig + W_hg h + b_hg)
            o = sigmoid(W_io x + b_io + W_ho h + b_ho)
            c' = f c + i g
            h' = o tanh(c'), times W_hr if there is a projection

    GRU     r = sigmoid(W_ir x + b_ir + W_hr h + b_hr)
            z = sigmoid(W_iz x + b_iz + W_hz h + b_hz)
            n = tanh(W_in x + b_in + r (W_hn h + b_hn))
            h' = (1 - z) n + z h
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import linear

from . import sequences
from .operator import Operator

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


# A whole sequence as one operator. Its gradient needs the gates of every step: on a CPU the loops of
# `sequences` keep them. On a GPU the recurrence is cuDNN's; what that keeps has a shape that only cuDNN
# knows, so the gradient runs it once more.


def sequence(
    x: Tensor,
    state: State,
    weights: tuple[Tensor, Tensor, Tensor | None, Tensor | None],
    *,
    cell: str,
    reverse: bool = False,
) -> tuple[Tensor, State]:
    """One direction of one layer by torch's own recurrence, as one operator.

    Args:
        x: shape (steps, b, features).
        state: (h, c) of an LSTM, (h,) of a GRU, shape (b, hidden) each.
        weights: W_ih, W_hh and b_ih, b_hh, or None for both, as in torch.
        cell: "lstm" or "gru".
        reverse: whether to run from the last step to the first.

    Returns:
        h after every step, shape (steps, b, hidden), and the last state.
    """
    x = x.flip(0) if reverse else x
    c = state[1] if len(state) > 1 else None
    every = SEQUENCE(x, state[0], c, *weights, cell)
    y = every if c is None else every[:-1]
    last = (y[-1],) if c is None else (y[-1], every[-1])
    return (y.flip(0) if reverse else y), last


def _plain(
    x: Tensor,
    h: Tensor,
    c: Tensor | None,
    W_ih: Tensor,
    W_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    cell: str,
) -> Tensor:
    """h after every step and, of an LSTM, the last c: (steps (+ 1), b, hidden)."""
    step: Any = gru_step if c is None else lstm_step
    state: State = (h,) if c is None else (h, c)
    outputs = []
    for each in linear(x, W_ih, b_ih).unbind(0):
        state = step(each, state, lambda h: linear(h, W_hh, b_hh))
        outputs.append(state[0])
    return torch.stack(outputs if c is None else [*outputs, state[1]])


def _kernel(x: Tensor, h: Tensor, c: Tensor | None, *rest: Any) -> Tensor | tuple[Tensor, ...]:
    if x.device.type == "cpu":
        return sequences.forward(x, h, c, *rest[:-1])
    return _by_torch(x, h, c, *rest)


def _by_torch(x: Tensor, h: Tensor, c: Tensor | None, W_ih: Tensor, W_hh: Tensor, *rest: Any) -> Tensor:
    b_ih, b_hh, _ = rest
    weights = [W_ih, W_hh] if b_ih is None else [W_ih, W_hh, b_ih, b_hh]
    settings = (weights, b_ih is not None, 1, 0.0, torch.is_grad_enabled(), False, False)
    if c is None:
        return torch.gru(x, h.unsqueeze(0), *settings)[0]
    y, _, last = torch.lstm(x, (h.unsqueeze(0), c.unsqueeze(0)), *settings)
    return torch.cat((y, last))


def _fake(x: Tensor, h: Tensor, c: Tensor | None, *rest: Any) -> Tensor | tuple[Tensor, ...]:
    every = h.new_empty(x.shape[0] + (c is not None), *h.shape)
    return (every, *sequences.kept(x, h, c)) if x.device.type == "cpu" else every


def _gradient(
    grad: Tensor, arguments: Sequence[Any], saved: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Tensor | None]:
    *tensors, cell = arguments
    if grad.device.type == "cpu":
        return sequences.backward(grad, tensors, saved, wanted)
    with torch.enable_grad():
        leaves = [None if t is None else t.detach().requires_grad_() for t in tensors]
        given: Any = [*leaves, cell]
        y = _by_torch(*given)
    found = iter(torch.autograd.grad(y, [t for t in leaves if t is not None], grad))
    return [None if t is None else next(found) for t in leaves]


def _serves(x: Tensor, *rest: Any) -> bool:
    return x.device.type in ("cpu", "cuda") and x.ndim == 3 and x.shape[0] > 0


def _batched(info: Any, dims: Sequence[int | None], apply: Any, arguments: Sequence[Any]) -> Any:
    """Recurrences with weights of their own run in plain torch."""
    tensors, cell = arguments[:-1], arguments[-1]
    found = torch.vmap(partial(_plain, cell=cell), in_dims=tuple(dims[:-1]))(*tensors)
    return (found,), (0,)


def _samples() -> Iterator[tuple[Any, ...]]:
    for cell, gates in (("lstm", 4), ("gru", 3)):
        x, h, W, U, b = (
            torch.randn(shape) for shape in ((3, 2, 4), (2, 5), (5 * gates, 4), (5 * gates, 5), (5 * gates,))
        )
        c = torch.randn(2, 5) if cell == "lstm" else None
        yield x, h, c, W, U, b, b.clone(), cell
        yield x, h, c, W, U, None, None, cell


SEQUENCE = Operator(
    "sequence",
    "Tensor x, Tensor h, Tensor? c, Tensor W_ih, Tensor W_hh, Tensor? b_ih, Tensor? b_hh, str cell",
    plain=_plain,
    kernel=_kernel,
    fake=_fake,
    gradient=_gradient,
    serves=_serves,
    samples=_samples,
    batched=_batched,
)
