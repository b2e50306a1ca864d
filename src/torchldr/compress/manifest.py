"""What a manifest says of a structured layer, and the layer that it says it of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from ..matrices import get_structure
from ..nn import MatrixStack, StructuredLinear
from ..nn.recurrent_base import StructuredRecurrent
from .attention import StructuredAttention, split_attention
from .layers import StructuredPointwise, empty_recurrent, quiet_linear
from .targets import describe_site

Entry = dict[str, Any]


def record(module: nn.Module) -> Entry | None:
    """The entry of a structured module, or None for others.

    >>> record(StructuredLinear(8, 4, structure="low_rank", rank=2)) == {
    ...     "kind": "linear", "structure": "low_rank", "rank": 2, "options": {}, "shape": [4, 8], "bias": True
    ... }
    True
    """
    if isinstance(module, StructuredLinear):
        shape = [module.out_features, module.in_features]
        return {"kind": "linear", **_structure(module), "shape": shape, "bias": module.bias is not None}
    if isinstance(module, StructuredPointwise):
        return {"kind": "conv2d", "stride": list(module.stride), "linear": record(module.linear)}
    if isinstance(module, StructuredAttention):
        parts = {name: record(child) for name, child in module.named_children()}
        return {
            "kind": "attention",
            "embed_dim": module.embed_dim,
            "num_heads": module.num_heads,
            "parts": {name: entry for name, entry in parts.items() if entry is not None},
        }
    if isinstance(module, StructuredRecurrent) and module.which == "input":
        some: MatrixStack = next(iter(module._stacks().values()))
        return {
            "kind": module.torch_class.__name__.lower(),
            **_structure(some),
            "input_size": module.input_size,
            "hidden_size": module.hidden_size,
            "num_layers": module.num_layers,
            "bidirectional": module.bidirectional,
        }
    return None


def _structure(layer: StructuredLinear | MatrixStack) -> Entry:
    return {"structure": layer.structure.name, "rank": layer.rank, "options": dict(layer.options)}


def build(old: nn.Module, entry: Mapping[str, Any]) -> nn.Module:
    """The structured module of an entry, in the place of a dense one; its numbers are still to be loaded.

    Raises:
        ValueError: where the dense one is of another kind or shape.
    """
    site = describe_site(old, [""])
    kind = "linear" if site is not None and site.kind == "conv1d" else site.kind if site is not None else None
    if kind != entry["kind"]:
        if record(old) is not None:
            raise ValueError(
                "the model's layer is compressed in another way than the folder's; load into a dense one"
            )
        raise ValueError(f"the folder has a layer of kind {entry['kind']}, the model a {type(old).__name__}")
    made: nn.Module
    if isinstance(old, nn.MultiheadAttention):
        _same(old, entry, "embed_dim", "num_heads")
        parts: dict[str, nn.Module] = dict(split_attention(old))
        for name, part in entry["parts"].items():
            if name not in parts:
                raise ValueError(f"an attention has no part {name!r}")
            parts[name] = _linear(parts[name], part)
        made = StructuredAttention(old, parts)
    elif isinstance(old, nn.LSTM | nn.GRU):
        _same(old, entry, "input_size", "hidden_size", "num_layers", "bidirectional")
        structure = get_structure(entry["structure"])
        made = empty_recurrent(old, structure, entry["rank"], entry["options"])
        for name, p in old._parameters.items():
            if name in made._parameters:
                made._parameters[name] = p
    elif isinstance(old, nn.Conv2d):
        if list(old.stride) != entry["stride"]:
            raise ValueError(f"stride is {list(old.stride)} in the model and {entry['stride']} in the folder")
        made = StructuredPointwise(_linear(old, entry["linear"]), old.stride)
    else:
        made = _linear(old, entry)
    return made


def _linear(old: nn.Module, entry: Mapping[str, Any]) -> StructuredLinear:
    site = describe_site(old, [""])
    assert site is not None
    (W,) = site.weights[""]
    bias = old._parameters.get("bias")
    if list(W.shape) != entry["shape"]:
        raise ValueError(
            f"the weight has shape {list(W.shape)} in the model and {entry['shape']} in the folder"
        )
    if (bias is not None) != entry["bias"]:
        raise ValueError(f"bias={bias is not None} in the model and bias={entry['bias']} in the folder")
    structure = get_structure(entry["structure"])
    options = {"rank": entry["rank"], "dtype": W.dtype, **entry["options"]}
    made = quiet_linear(W.shape[0], W.shape[1], structure, **options).to(W.device)
    weight = old._parameters["weight"]
    made.requires_grad_(weight is not None and weight.requires_grad)
    made._parameters["bias"] = bias
    return made


def _same(old: Any, entry: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if getattr(old, name) != entry[name]:
            raise ValueError(f"{name} is {getattr(old, name)} in the model and {entry[name]} in the folder")
