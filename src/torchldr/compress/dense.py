"""The way back: torch's layers with the functions of the structured ones."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from ..nn import StructuredLinear
from ..nn.recurrent.base import StructuredRecurrent
from ..nn.tensors import runs_as_made
from .attention import StructuredAttention
from .layers import StructuredPointwise, dense_linear

REPLACED = (StructuredLinear, StructuredPointwise, StructuredAttention, StructuredRecurrent)


@torch.no_grad()
def dense_modules(model: nn.Module) -> dict[int, tuple[nn.Module, nn.Module]]:
    """Every structured module of a model, by its id, with the dense one that takes its place."""
    if isinstance(model, REPLACED):
        raise ValueError(
            f"materialize_: the model is itself a {type(model).__name__}, which cannot be replaced in place; "
            "put it into an nn.Sequential."
        )
    made: dict[int, tuple[nn.Module, nn.Module]] = {}
    inner = {
        id(part)
        for module in model.modules()
        if isinstance(module, StructuredPointwise | StructuredAttention)
        for part in module.children()
    }
    tied: dict[tuple[int, ...], nn.Parameter] = {}
    for module in model.modules():
        if id(module) in inner or (isinstance(module, REPLACED) and not runs_as_made(module)):
            continue
        if isinstance(module, StructuredLinear):
            layer = dense_linear(module)
            key = tuple(id(p) for name, p in module._parameters.items() if name != "bias")
            layer._parameters["weight"] = tied.setdefault(key, cast(nn.Parameter, layer.weight))
            made[id(module)] = module, layer
        elif isinstance(module, StructuredPointwise):
            made[id(module)] = module, _convolution(module, tied)
        elif isinstance(module, StructuredAttention):
            made[id(module)] = module, module.to_torch()
        elif isinstance(module, StructuredRecurrent):
            made[id(module)] = module, _recurrent(module)
    return made


def _convolution(module: StructuredPointwise, tied: dict[tuple[int, ...], nn.Parameter]) -> nn.Conv2d:
    dense = dense_linear(module.linear)
    made = nn.utils.skip_init(
        nn.Conv2d,
        dense.in_features,
        dense.out_features,
        1,
        module.stride,
        bias=False,
        dtype=dense.weight.dtype,
    )
    weight = nn.Parameter(dense.weight.detach()[..., None, None], requires_grad=dense.weight.requires_grad)
    key = tuple(id(p) for name, p in module.linear._parameters.items() if name != "bias")
    made.weight, made.bias = (
        tied.setdefault((*key, 2), weight),
        dense.bias,
    )  # 2: not to be mixed with nn.Linear
    return made


def _recurrent(module: StructuredRecurrent) -> nn.RNNBase:
    made = module.to_torch()
    stacks = module._stacks()
    for name, p in list(made._parameters.items()):
        assert p is not None
        if name in stacks:
            p.requires_grad_(any(part.requires_grad for part in stacks[name].parameters()))
        else:
            setattr(made, name, module._parameters[name])
    return made
