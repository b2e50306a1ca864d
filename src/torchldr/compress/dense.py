"""`materialize_`: torch's layers with the functions of the structured ones."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from ..nn import StructuredLinear
from ..nn.parameters import describe
from ..nn.recurrent.base import StructuredRecurrent
from ..nn.tensors import runs_as_made
from .attention import StructuredAttention
from .layers import StructuredPointwise, dense_linear, keep_state, replace_modules
from .manifest import declare
from .targets import check_unwrapped

REPLACED = (StructuredLinear, StructuredPointwise, StructuredAttention, StructuredRecurrent)


@torch.no_grad()
def materialize_(model: nn.Module) -> nn.Module:
    """Put dense layers back where structured ones stand, in place: the same function, torch's own layers.

    StructuredLinear becomes nn.Linear (also where a Hugging Face Conv1D once stood), and what `compress_`
    put for convolutions, attention and recurrent layers becomes torch's. Weights that were tied stay so, and
    so do subclasses with a `forward` of their own.

    Returns:
        The model.
    """
    check_unwrapped("materialize_", model)
    if isinstance(model, REPLACED):
        raise ValueError(
            f"materialize_: the model is itself a {type(model).__name__}, which cannot be replaced in place; "
            "put it into an nn.Sequential."
        )
    made: dict[int, nn.Module] = {}
    inner: set[int] = set()
    tied: dict[tuple[object, ...], nn.Parameter] = {}
    for module in model.modules():  # parents come before their children
        if not isinstance(module, REPLACED) or id(module) in inner or not runs_as_made(module):
            continue
        inner |= set(map(id, module.children()))
        if isinstance(module, StructuredRecurrent):
            made[id(module)] = _recurrent(module)
        elif isinstance(module, StructuredAttention):
            made[id(module)] = module.to_torch()
        else:
            own = module.linear if isinstance(module, StructuredPointwise) else module
            linear = cast(StructuredLinear, own)
            new: nn.Module = dense_linear(linear)
            if isinstance(module, StructuredPointwise):
                new = _convolution(new, module.stride)
            # What is not a parameter but computed, by a parametrization, say, is the layer's own.
            owned = {**linear._buffers, **linear._parameters}
            names = (*linear._learned, *linear.structure.drawn)
            weight = cast(nn.Parameter, new._parameters["weight"])
            key = (describe(linear), weight.shape, *(id(owned.get(name, linear)) for name in names))
            new._parameters["weight"] = tied.setdefault(key, weight)
            made[id(module)] = new
        keep_state(module, made[id(module)])
    replace_modules(model, made)
    declare(model)
    return model


def _convolution(dense: nn.Module, stride: tuple[int, int]) -> nn.Module:
    old = dense._parameters["weight"]
    assert old is not None
    m, n = old.shape
    made = nn.utils.skip_init(nn.Conv2d, n, m, 1, stride, bias=False, dtype=old.dtype)
    made.weight = nn.Parameter(old.detach()[..., None, None], requires_grad=old.requires_grad)
    made._parameters["bias"] = dense._parameters["bias"]
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
