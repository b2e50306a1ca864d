"""The tensors of a layer, even under pruning and parametrizations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.prune import BasePruningMethod

from ..core.owned import format_of


def named_tensors(layer: nn.Module, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Parameters and buffers by name, including the values of pruning and parametrizations."""
    found = own_tensors(layer)
    return {name: found[name] if name in found else getattr(layer, name) for name in names}


def own_tensors(layer: nn.Module) -> dict[str, Any]:
    """The layer's parameters and buffers by name."""
    return {**layer._parameters, **layer._buffers} if layer._buffers else layer._parameters


def add_axes(model: nn.Module, state: dict[str, Any], prefix: str = "") -> None:
    """Give 0-d tensors in a state_dict an axis, as the layers have.

    LDR-SD's corners were 0-d in version 0.1, but FSDP needs an axis.
    """
    for path, layer in model.named_modules(remove_duplicate=False):
        if hasattr(layer, "_learned"):  # structured parameters; in front are the axes of a stack
            lead = len(layer.leading)
            for name, p in layer.named_parameters(f"{prefix}{path}{'.' if path else ''}".removesuffix(".")):
                t = state.get(name)
                if isinstance(t, Tensor) and p.shape[lead:] == (1,) and t.shape == p.shape[:lead]:
                    state[name] = t.unsqueeze(-1)


def in_format_of(y: Tensor, x: Tensor) -> Tensor:
    """y in the memory format of x, like the outputs of torch's own layers, if it has as many axes."""
    return y.contiguous(memory_format=format_of(x) if x.ndim == y.ndim else torch.contiguous_format)


def called_with(
    model: nn.Module, lent: Mapping[int, Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """The output with other tensors in place of a model's own, given by their `id`.

    Unlike torch's `functional_call` it restores modules with two names.
    """
    places = {
        f"{path}.{name}".removeprefix("."): lent[id(t)]
        for path, module in model.named_modules()
        for name, t in {**module._parameters, **module._buffers}.items()
        if id(t) in lent
    }
    return functional_call(model, places, args, dict(kwargs), tie_weights=False)


def runs_as_made(layer: nn.Module) -> bool:
    """Whether a layer of this package runs its own `forward`, not that of a subclass or a wrapper."""
    return str(layer.forward.__module__).startswith("torchldr.")


def let_prune(layer: nn.Module) -> None:
    """Let pruning set its parameters, as it does before a call, where a module's are used without one."""
    for hook in layer._forward_pre_hooks.values():
        if isinstance(hook, BasePruningMethod):
            hook(layer, ())
