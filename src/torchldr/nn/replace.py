"""Replacing modules, and dense layers made from structured ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils import _pytree as pytree

from .linear import StructuredLinear
from .tensors import let_prune

# The hook registries of nn.Module. They move as a whole, so that existing handles still work.
_HOOKS = tuple(name for name in vars(nn.Module()) if "forward" in name or "backward" in name)


def replace_modules(model: nn.Module, replacements: Mapping[nn.Module, nn.Module]) -> None:
    """Replace modules wherever they are registered, and keep their hooks and modes.

    This includes lists, tuples and mappings in attributes, because some models call registered modules from
    there.
    """
    for old, new in replacements.items():
        new.__dict__.update({name: old.__dict__[name] for name in _HOOKS if name in old.__dict__})
        if prune.is_pruned(old):  # a new module has nothing to prune
            hooks = old._forward_pre_hooks.items()
            kept = ((key, hook) for key, hook in hooks if not isinstance(hook, prune.BasePruningMethod))
            new._forward_pre_hooks = OrderedDict(kept)
        if new.training != old.training:
            new.train(old.training)
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and child in replacements:
                parent._modules[name] = replacements[child]
        for name, value in list(vars(parent).items()):
            if isinstance(value, list | tuple | dict):
                held = {id(leaf) for leaf in pytree.tree_leaves(value)}
                if any(id(old) in held for old in replacements):
                    found = pytree.tree_map_only(nn.Module, lambda old: replacements.get(old, old), value)
                    vars(parent)[name] = found
    _set_nesting(model)


def _set_nesting(model: nn.Module) -> None:
    """Keep nn.TransformerEncoder from nesting padded batches while it has structured layers.

    It would check only its first layer, and our layers take no nested tensors. Results differ only at padded
    positions, which nesting sets to zero.
    """
    for encoder in model.modules():
        if isinstance(encoder, nn.TransformerEncoder):
            structured = any(isinstance(module, StructuredLinear) for module in encoder.modules())
            kept = encoder.__dict__
            if structured and kept.get("use_nested_tensor"):
                kept["use_nested_tensor"], kept["_nests_when_dense"] = False, True
            elif not structured and kept.pop("_nests_when_dense", False):
                kept["use_nested_tensor"] = True


def dense_linear(layer: nn.Module) -> nn.Linear:
    """An nn.Linear that computes the same function, with the same bias."""
    let_prune(layer)
    weight: Any = layer.weight
    learned = any(p.requires_grad for name, p in layer.named_parameters() if "bias" not in name)
    return plain_linear(weight, own_parameter(layer, "bias"), learned)


def own_parameter(layer: nn.Module, name: str) -> nn.Parameter | None:
    """A layer's parameter; for a computed one (pruning) its value as a new parameter."""
    if name in layer._parameters:
        return layer._parameters[name]
    learned = any(p.requires_grad for key, p in layer.named_parameters() if name in key)
    return nn.Parameter(getattr(layer, name).detach().clone(), learned)


def plain_linear(weight: Tensor, bias: nn.Parameter | None, learned: bool) -> nn.Linear:
    """An nn.Linear with a copy of the weight and the bias itself."""
    out_features, in_features = weight.shape
    made = nn.utils.skip_init(nn.Linear, in_features, out_features, False, dtype=weight.dtype)
    made.weight = nn.Parameter(weight.detach().clone(), requires_grad=learned)
    made._parameters["bias"] = bias
    return made
