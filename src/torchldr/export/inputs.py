"""Example inputs: their names, random ones like them, and which of their axes may change."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from ..core.checks import check_model


class Inputs(NamedTuple):
    """What a model is called with, its arguments by name in the order of its signature."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: tuple[str, ...]

    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(leaf, Tensor)]

    def tensor_names(self) -> list[str] | None:
        """Names for all tensors, where every argument is one."""
        values = (*self.args, *self.kwargs.values())
        return list(self.names) if all(isinstance(value, Tensor) for value in values) else None

    def map(self, change: Callable[[Tensor], Any]) -> Inputs:
        args, kwargs = pytree.tree_map_only(Tensor, change, (self.args, self.kwargs))
        return Inputs(args, kwargs, self.names)


def take_inputs(who: str, model: nn.Module, example: Any) -> Inputs:
    """A tensor, a tuple or list of arguments, or a mapping of keyword arguments."""
    check_model(who, model)
    args: tuple[Any, ...] = (example,)
    kwargs: dict[str, Any] = {}
    if any(map(_is_packed, pytree.tree_leaves(example, is_leaf=_is_packed))):
        raise TypeError(f"{who}: packed sequences are not exported; give a padded example.")
    if isinstance(example, Mapping):
        args, kwargs = (), dict(example)
    elif isinstance(example, tuple | list):
        args = tuple(example)
    try:
        bound = inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(
            f"{who}: example_inputs do not fit {type(model).__name__}.forward: {error}."
        ) from error
    kwargs = {**{name: kwargs[name] for name in bound.arguments if name in kwargs}, **kwargs}
    positional = [name for name in bound.arguments if name not in kwargs][: len(args)]
    positional += [f"input_{i}" for i in range(len(positional), len(args))]
    made = Inputs(args, kwargs, (*positional, *kwargs))
    if not made.tensors():
        raise TypeError(f"{who}: example_inputs must hold a tensor, got {type(example).__name__}.")
    return made.map(lambda t: t.detach().cpu())


def _is_packed(value: Any) -> bool:
    return isinstance(value, PackedSequence)


def free_axes(t: Tensor, *, sequences: bool = True) -> tuple[int, ...]:
    """The axes of an input that may change: the batch, and how long its sequences are.

    Sequences are tensors (batch, length, features), or of whole numbers, such as tokens and their masks.
    """
    if sequences and t.ndim and not t.is_floating_point():
        return tuple(range(t.ndim))
    return (0, 1) if sequences and t.ndim == 3 else (0,) if t.ndim else ()


def dynamic_axes(inputs: Inputs, *, sequences: bool = True) -> Any:
    """Dynamic shapes for torch.export: those axes of every tensor, where the model allows it."""
    shapes = torch.export.ShapesCollection()
    for t in inputs.tensors():
        if axes := free_axes(t, sequences=sequences):
            shapes[t] = dict.fromkeys(axes, torch.export.Dim.AUTO)
    return shapes


def at_least_two(t: Tensor, *, sequences: bool = True) -> Tensor:
    """Repeat such axes if their size is 1, which torch.export would treat as a constant."""
    for axis in free_axes(t, sequences=sequences):
        t = torch.cat((t, t), axis) if t.shape[axis] == 1 else t
    return t


def random_like(
    inputs: Inputs, generator: torch.Generator, shapes: Sequence[Sequence[int]] | None = None
) -> Inputs:
    """Random inputs: normal numbers of the example's size, and of integers and booleans its own values.

    `shapes` are those of all tensors; by default the example's.
    """
    wanted = iter(shapes or [t.shape for t in inputs.tensors()])

    def drawn(t: Tensor) -> Tensor:
        shape = next(wanted)
        if t.is_floating_point() and bool(t.isfinite().all()):
            scale = t.double().square().mean().sqrt().item() if t.numel() else 1.0
            return (torch.randn(shape, generator=generator, dtype=torch.float64) * (scale or 1.0)).to(t.dtype)
        if not t.numel() or not t.ndim:
            return t
        if t.is_floating_point():  # a mask with infinities: as it is, and repeated
            for axis, size in enumerate(shape):
                t = t.index_select(axis, torch.arange(size) % t.shape[axis])
            return t
        flat = t.flatten()
        return flat[torch.randint(len(flat), tuple(shape), generator=generator)]

    return inputs.map(drawn)
