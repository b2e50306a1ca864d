"""Inputs of recurrent layers in one form: checks, axes, packed sequences, states."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ...core.products import check_like
from ...functional.recurrence import State

Sequences: TypeAlias = Tensor | PackedSequence


class Given(NamedTuple):
    """A batch of sequences: padded, (steps, batch, features), or packed, (all steps, features)."""

    data: Tensor
    batch_sizes: Tensor | None  # of a packed one
    batched: bool
    packed: PackedSequence | None

    # Methods, not properties: the compiler of torch 2.8 takes no properties of named tuples.

    def batch(self) -> int:
        return self.data.shape[1] if self.batch_sizes is None else int(self.batch_sizes[0])

    def sizes(self) -> list[int]:
        """The number of sequences at each step."""
        if self.batch_sizes is None:
            steps, batch = self.data.shape[:2]
            return [batch] * steps
        return self.batch_sizes.tolist()


def take(who: str, x: Sequences, features: int, weight: Tensor, *, batch_first: bool) -> Given:
    """Check an input and bring it into one form."""
    if isinstance(x, PackedSequence):
        given = Given(x.data, x.batch_sizes, True, x)
        wanted = "packed data must have shape (all steps, {})"
        right = x.data.ndim == 2
    elif isinstance(x, Tensor):
        order = "batch, steps" if batch_first else "steps, batch"
        wanted = f"the input must have shape ({order}, {{0}}) or, for one sequence, (steps, {{0}})"
        right = x.ndim in (2, 3)
        data = x.unsqueeze(1) if x.ndim == 2 else x.transpose(0, 1) if batch_first and right else x
        given = Given(data, None, x.ndim == 3, None)
    else:
        raise TypeError(f"{who}: expected a tensor or a PackedSequence, got {type(x).__name__}.")
    data = given.data
    if not right or data.shape[-1] != features:
        raise ValueError(f"{who}: {wanted.format(f'input_size={features}')}, got {_shape(x)}.")
    if given.batch_sizes is None and data.shape[0] == 0:
        raise ValueError(f"{who}: a sequence must have at least one step, got {_shape(x)}.")
    check_like(who, data, weight)
    return given


def take_state(
    who: str, given: Given, state: State | None, sizes: tuple[tuple[int, int], ...], names: tuple[str, ...]
) -> State:
    """The initial state: zeros or the given one, in the order of the packed batch.

    Each part of a state is (layers, batch, size), without the batch axis for one sequence; `sizes` are
    (layers, size).
    """
    if state is None:
        data = given.data
        return tuple(
            torch.zeros(layers, given.batch(), size, dtype=data.dtype, device=data.device)
            for layers, size in sizes
        )
    if not isinstance(state, tuple | list) or len(state) != len(sizes):
        raise TypeError(f"{who}: hx must be {' and '.join(names)}, got {type(state).__name__}.")
    parts = []
    for name, part, (layers, size) in zip(names, state, sizes, strict=True):
        if not isinstance(part, Tensor):
            raise TypeError(f"{who}: {name} must be a tensor, got {type(part).__name__}.")
        shape = (layers, given.batch(), size) if given.batched else (layers, size)
        if part.shape != shape:
            raise ValueError(f"{who}: {name} must have shape {shape}, got {tuple(part.shape)}.")
        check_like(who, part, given.data, name, "input")
        parts.append(part if given.batched else part.unsqueeze(1))
    order = given.packed.sorted_indices if given.packed is not None else None
    return tuple(parts) if order is None else tuple(part.index_select(1, order) for part in parts)


def give(given: Given, output: Tensor, state: State, *, batch_first: bool) -> tuple[Sequences, State]:
    """Undo `take` for the output and the last state."""
    if given.packed is not None:
        _, sizes, order, back = given.packed
        if back is not None:
            state = tuple(part.index_select(1, back) for part in state)
        return PackedSequence(output, sizes, order, back), state
    if not given.batched:
        return output.squeeze(1), tuple(part.squeeze(1) for part in state)
    return (output.transpose(0, 1) if batch_first else output), state


def _shape(x: Sequences) -> tuple[int, ...]:
    return tuple((x.data if isinstance(x, PackedSequence) else x).shape)
