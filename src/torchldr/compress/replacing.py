"""Replacing dense modules by structured ones, from a plan or a description, and back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import nn

from ..core.pretrained import check_present
from ..matrices import Projection
from ..nn import MatrixStack, StructuredLinear, parameters
from ..nn.attention import StructuredAttention
from ..nn.description import Entry, declare, describe
from ..nn.pointwise import StructuredPointwise
from ..nn.recurrent.base import StructuredRecurrent
from ..nn.replace import dense_linear, own_parameter, replace_modules
from ..nn.tensors import runs_as_made
from .filling import fill, quiet_linear, quiet_recurrent, split_attention
from .structure import Structure
from .targets import RECURRENT, Unit, check_unwrapped, parts_of

REPLACED = (StructuredLinear, StructuredPointwise, StructuredAttention, StructuredRecurrent)


def holders(module: nn.Module) -> dict[str, StructuredLinear | MatrixStack]:
    """The layers or stacks that hold a structured module's matrices, by part name."""
    if isinstance(module, StructuredPointwise):
        module = module.linear
    if isinstance(module, StructuredLinear):
        return {"": module}
    if isinstance(module, StructuredRecurrent):
        return dict(module._stacks())
    return {name: part for name, part in module.named_children() if isinstance(part, StructuredLinear)}


def replacement(old: nn.Module, plan: Mapping[str, Structure]) -> nn.Module:
    """A structured module for a dense one, with matrices that are not filled yet.

    Parts without a structure in the plan stay dense.
    """
    if isinstance(old, nn.MultiheadAttention):
        parts = split_attention(old)
        parts |= {name: _linear(parts[name], structure) for name, structure in plan.items()}
        return StructuredAttention(old, parts)
    if isinstance(old, nn.LSTM | nn.GRU):
        return quiet_recurrent(old, plan)
    made = _linear(old, plan[""])
    return StructuredPointwise(made, old.stride) if isinstance(old, nn.Conv2d) else made


def install(
    model: nn.Module, done: Iterable[tuple[Unit, Structure, list[Projection]]], *, copy: bool
) -> None:
    """Build every replacement from the projections' tensors, or copies of them, and put it into the model."""
    parts: dict[nn.Module, dict[str, tuple[Structure, list[Projection]]]] = defaultdict(dict)
    for unit, structure, found in done:
        for part in unit.places if found else []:
            parts[part.module][part.name] = structure, found
    made: dict[nn.Module, nn.Module] = {}
    leaders: dict[int, Any] = {}  # the first holder of each projection
    for module, some in parts.items():
        made[module] = replacement(module, {name: structure for name, (structure, _) in some.items()})
        for name, holder in holders(made[module]).items():
            found = some[name][1]
            if (leader := leaders.setdefault(id(found), holder)) is holder:
                fill(holder, [projection.matrix for projection in found], copy=copy)
            else:
                _tie(holder, leader)
    replace_modules(model, made)
    declare(model)


def _tie(follower: nn.Module, leader: nn.Module) -> None:
    """Let one StructuredLinear hold the matrix of another; biases stay their own."""
    for name, p in leader._parameters.items():
        if name != "bias":
            follower._parameters[name] = p
    for name, buffer in leader._buffers.items():
        follower._buffers[name] = buffer


def _linear(old: nn.Module, structure: Structure) -> StructuredLinear:
    part = parts_of(old)[""]
    (W,) = part.matrices
    made = quiet_linear(W.shape[0], W.shape[1], structure, W.dtype).to(W.device)
    made.requires_grad_(part.parameter.requires_grad)
    made._parameters["bias"] = old._parameters.get("bias")
    return made


def build(old: nn.Module, entry: Mapping[str, Any]) -> nn.Module:
    """A structured module as an entry describes it, for a dense one; its numbers are not loaded yet.

    Raises:
        ValueError: if the dense module has another kind or shape.
    """
    parts = parts_of(old)
    kind = next((part.kind for part in parts.values()), None)
    if ("linear" if kind == "conv1d" else kind) != entry["kind"]:
        if describe(old) is not None:
            raise ValueError(
                "the model's layer is compressed in another way than the folder's; load into a dense one"
            )
        raise ValueError(f"the folder has a layer of kind {entry['kind']}, the model a {type(old).__name__}")
    entries = {"": entry.get("linear", entry)}
    if kind == "attention":
        entries = entry["parts"]
    elif kind in RECURRENT:
        inputs = [name for name in parts if name.startswith("weight_ih")]
        entries = entry.get("weights") or dict.fromkeys(inputs, entry)  # default: the same for all
    if unknown := [name for name in entries if name not in parts]:
        raise ValueError(f"a {type(old).__name__} of these sizes has no {unknown[0]}")
    named = {key: Structure(one["structure"], one["rank"], **one["options"]) for key, one in entries.items()}
    made = replacement(old, named)
    _check_sizes(describe(made) or {}, entry)
    return made


def _check_sizes(found: Entry, entry: Mapping[str, Any]) -> None:
    """Raise if a module's sizes differ from an entry's; its structures come from the entry."""
    for key, value in found.items():
        if key in ("structure", "rank", "options", "weights"):
            continue
        if isinstance(value, dict):
            _check_sizes(value, entry[key])
        elif value != entry[key]:
            raise ValueError(f"{key} is {value} in the model and {entry[key]} in the folder")


@torch.no_grad()
def materialize_(model: nn.Module) -> nn.Module:
    """Replace structured layers by torch's dense layers, in place. The model computes the same function.

    StructuredLinear becomes nn.Linear, even if `compress_` replaced a Hugging Face Conv1D. The structured
    convolutions, attention and recurrent layers of `compress_` become torch's. Tied weights stay tied.
    Subclasses with their own `forward` stay structured.

    Returns:
        The model.
    """
    check_unwrapped("materialize_", model)
    check_present("materialize_", model)
    if isinstance(model, REPLACED):
        raise ValueError(
            f"materialize_: the model is itself a {type(model).__name__}, which cannot be replaced in place; "
            "put it into an nn.Sequential."
        )
    made: dict[nn.Module, nn.Module] = {}
    inner: set[nn.Module] = set()
    tied: dict[tuple[object, ...], nn.Parameter] = {}
    for module in model.modules():  # parents come before their children
        if not isinstance(module, REPLACED) or module in inner or not runs_as_made(module):
            continue
        inner |= set(module.children())
        if isinstance(module, StructuredRecurrent):
            made[module] = _recurrent(module)
        elif isinstance(module, StructuredAttention):
            made[module] = module.to_torch()
        else:
            own = module.linear if isinstance(module, StructuredPointwise) else module
            linear = cast(StructuredLinear, own)
            new: nn.Module = dense_linear(linear)
            if isinstance(module, StructuredPointwise):
                new = _convolution(new, module.stride)
            # A tensor that a parametrization computes belongs to this layer alone.
            owned = {**linear._buffers, **linear._parameters}
            names = (*linear._learned, *linear.structure.drawn)
            weight = cast(nn.Parameter, new._parameters["weight"])
            key = (
                parameters.describe(linear),
                weight.shape,
                *(id(owned.get(name, linear)) for name in names),
            )
            new._parameters["weight"] = tied.setdefault(key, weight)
            made[module] = new
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
            setattr(made, name, own_parameter(module, name))
    return made
