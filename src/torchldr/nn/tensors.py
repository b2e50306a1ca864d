"""The tensors of a layer, whatever torch's tools have made of them."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod


def named_tensors(layer: nn.Module, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Parameters and buffers by name; what pruning or a parametrization has put in their place too."""
    found = {**layer._buffers, **layer._parameters}
    return {name: cast(Tensor, found[name] if name in found else getattr(layer, name)) for name in names}


def let_prune(layer: nn.Module) -> None:
    """Let pruning set its parameters, as it does before a call, where a module's are used without one."""
    for hook in layer._forward_pre_hooks.values():
        if isinstance(hook, BasePruningMethod):
            hook(layer, ())
